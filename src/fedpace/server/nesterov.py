"""The server step `nesterov`: Nesterov momentum with restarts and FedExP's longer steps; the default of `pace`.

The model that clients receive runs ahead of the averaged model by a part of the last move
(`fedpace.server._step_length`). The averaged update is also lengthened, as far as FedExP, the curvature and a budget
allow (`fedpace.server._step_length`). Momentum lengthens steps too: if rounds agree on a direction, the model moves 1 /
(1 - part) times as far along it. This counts toward FedExP's factor. The curvature along the path limits momentum as
well, so that the model does not overshoot where the plain average already reaches the minimum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, TypeVar

import numpy as np

from fedpace._base.options import Between, Options
from fedpace.core.server_rule import Answers, Part, Vector, norm, same
from fedpace.numerics.parts import LARGE, in_parts
from fedpace.server._step_length import StepLength, carried_part, fedexp_factor

SUMS_KEPT = 0.5
"""Part of the curvature sums kept per step; small, because the curvature changes with the direction of the moves."""


@dataclass(frozen=True, eq=False, kw_only=True)
class MomentumState(StepLength):
    """State of the momentum: the lead of the sent model over the averaged model, and data of past steps."""

    momentum: Vector
    """The lead: sent model minus averaged model."""
    last: Vector
    """The averaged update of the last step."""
    age: int = 0
    """Steps since the last restart."""
    carried: float = 0.0
    """Part of the last move that the next move repeats."""
    move: Vector
    """The last move of the sent model."""
    move_before: Vector
    """The move before the last one."""
    curvature_numerator: float = 0.0
    """Numerator of the curvature estimate: decaying sum of (change of the update along the previous move) x overlap."""
    curvature_denominator: float = 0.0
    """Denominator of the curvature estimate: decaying sum of squared overlaps of consecutive moves."""

    @property
    def moved(self) -> float:
        """Length of the last move; 0 = no move yet."""
        return norm(self.move)

    def with_curvature(self, update: Vector) -> tuple[float, float, float]:
        """Return the curvature along the path, and the two sums that give it.

        The last move d changed the update by u - u' = -h d, with h the curvature. Estimating h from d directly is
        biased: the noise in u' is also in d, and noise alone would look like the steepest curvature. The move before,
        z, is independent of both noises. So h is the least-squares slope of -<u - u', z> against <d, z> over steps,
        with z as an instrumental variable.
        """
        lengths = self.moved * norm(self.move_before)
        if not lengths > 0:
            return 0.0, self.curvature_numerator, self.curvature_denominator
        overlap = float(self.move @ self.move_before) / lengths
        change = float((self.last - update) @ self.move_before) / lengths
        numerator = SUMS_KEPT * self.curvature_numerator + overlap * change
        denominator = SUMS_KEPT * self.curvature_denominator + overlap * overlap
        return (numerator / denominator if denominator > 0 else 0.0), numerator, denominator


L = TypeVar("L", bound=MomentumState)


@dataclass(frozen=True)
class Nesterov(Options):
    """The averaged step, lengthened, with Nesterov momentum.

    Args:
        power: exponent of FedExP's factor, with momentum counted as part of the factor; 0 = do not lengthen steps.
    """

    name: ClassVar[str] = "nesterov"
    takes: ClassVar[frozenset[Part]] = frozenset({"squares"})

    power: Annotated[float, Between(0, 1)] = 1.0

    def init(self, zero: Vector) -> MomentumState:
        """Return the state before the first step: no lead."""
        return MomentumState(momentum=zero, last=zero, move=zero, move_before=zero)

    def apply(self, state: L, model: Vector, answers: Answers) -> tuple[Vector, L]:
        """Return the next model to send, and the state."""
        if answers.step.shape[0] > LARGE:
            state = self.next_state(state, answers)
            return sum_in_parts(model, state.move), state
        update, square = answers.step, norm(answers.step) ** 2
        curvature, numerator, denominator = state.with_curvature(update)
        carried, age = carried_part(state.age, square + float(update @ state.momentum), curvature)
        allowed = fedexp_factor(answers.mean_square, square, self.power) * (1 - carried) if self.power else 1.0
        after = state.next(allowed, change=norm(update - state.last), moved=state.moved, length=math.sqrt(square))
        step = after.step_factor * update
        momentum = (state.momentum + step) * carried
        part, after = after.within_budget(norm(step + momentum - update))
        step, momentum = update + part * (step - update), part * momentum
        move = step + momentum
        return model + move, replace(
            after,
            momentum=momentum,
            last=update,
            age=age,
            carried=carried,
            move=move,
            move_before=state.move,
            curvature_numerator=numerator,
            curvature_denominator=denominator,
        )

    def next_state(self, state: L, answers: Answers) -> L:
        """Return the state of `apply` for a large model; its `move` is the move.

        The same formulas as in `apply`, with all lengths from inner products, in one pass over the vectors and another
        that writes the result, so that there are no temporary copies. The vectors of the state are in single precision.
        """
        update, lead, before_last = (np.asarray(each) for each in (answers.step, state.momentum, state.last))
        before, earlier = np.asarray(state.move), np.asarray(state.move_before)

        def products(part: slice) -> tuple[float, ...]:
            u, m, d, z = (np.asarray(each[part], dtype=np.float64) for each in (update, lead, before, earlier))
            change = before_last[part] - u
            pairs = (u, u), (u, m), (m, m), (change, change), (change, z), (d, d), (d, z), (z, z)
            return tuple(float(one @ other) for one, other in pairs)

        uu, um, mm, cc, cz, dd, dz, zz = np.sum(in_parts(products, len(update)), axis=0).tolist()
        numerator, denominator, curvature = state.curvature_numerator, state.curvature_denominator, 0.0
        if (lengths := math.sqrt(dd) * math.sqrt(zz)) > 0:
            numerator = SUMS_KEPT * numerator + dz * cz / lengths**2
            denominator = SUMS_KEPT * denominator + (dz / lengths) ** 2
            curvature = numerator / denominator if denominator > 0 else 0.0
        carried, age = carried_part(state.age, uu + um, curvature)
        allowed = fedexp_factor(answers.mean_square, uu, self.power) * (1 - carried) if self.power else 1.0
        after = state.next(allowed, change=math.sqrt(cc), moved=math.sqrt(dd), length=math.sqrt(uu))
        factor = after.step_factor
        ahead = factor - 1 + carried * factor  # step + momentum - update = ahead u + carried m
        beyond = ahead**2 * uu + 2 * ahead * carried * um + carried**2 * mm
        part_allowed, after = after.within_budget(math.sqrt(max(beyond, 0.0)))
        kept = part_allowed * carried
        by_update = 1 + part_allowed * (factor - 1)
        momentum, move = (np.empty(len(update), dtype=np.float32) for _ in range(2))
        last = update.astype(np.float32, copy=False)

        def write(part: slice) -> None:
            u = update[part]
            carried_on = kept * (lead[part] + factor * u)
            momentum[part] = carried_on
            move[part] = by_update * u + carried_on

        in_parts(write, len(update))
        return replace(
            after,
            momentum=same(state.momentum, momentum),
            last=same(state.last, last),
            age=age,
            carried=carried,
            move=same(state.move, move),
            move_before=state.move,
            curvature_numerator=numerator,
            curvature_denominator=denominator,
        )


def sum_in_parts(model: Vector, move: Vector) -> Vector:
    """Return model + move in double precision."""
    found = np.empty(len(move))
    one, other = np.asarray(model), np.asarray(move)

    def add(part: slice) -> None:
        np.add(one[part], other[part], out=found[part])

    in_parts(add, len(found))
    return same(move, found)
