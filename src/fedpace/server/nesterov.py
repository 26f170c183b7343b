"""The server step `nesterov`: Nesterov momentum with restarts and FedExP's longer steps; the default of `pace`.

The model that clients receive runs ahead of the averaged model by a part of the last move
(`fedpace.server._step_length`). The averaged update is also lengthened, as far as FedExP, the curvature and a budget
allow (`fedpace.server._step_length`). Momentum lengthens steps too: if rounds agree on a direction, the model moves 1 /
(1 - part) times as far along it. This counts toward FedExP's factor. The curvature along the path limits momentum as
well, so that the model does not overshoot where the plain average already reaches the minimum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import FloatArray
from fedpace._base.options import Between, Options
from fedpace.core.server_rule import Answers, Part, Vector, norm, same
from fedpace.numerics import quantised
from fedpace.numerics.parts import LARGE, in_parts, inner
from fedpace.server._step_length import StepLength, carried_part, fedexp_factor

SUMS_KEPT = 0.5
"""Part of the curvature sums kept per step; small, because the curvature changes with the direction of the moves."""
LEAD_BITS: quantised.Bits = 16
"""Bits per value of a large model's lead, as of references. Steps multiply it by less than 1: errors do not add up."""
STORED_BITS: quantised.Bits = 8
"""Bits per value of a large model's last update, of which only inner products and its sum with the lead are used."""
MOVE_BITS: quantised.Bits = 4
"""Bits per value of its move before the last one. It is an instrument: errors change the weight of a step in the
curvature, but not the curvature that the step shows."""

Limit = Callable[[float], float]
"""Function: length of a move -> the part of it to make."""


@dataclass(frozen=True, eq=False, kw_only=True)
class MomentumState(StepLength):
    """State of the momentum: the lead of the sent model over the averaged model, and data of past steps.

    For a large model, vectors are stored in few bits (`fedpace.numerics.quantised`), and the last move is not stored:
    it is `lengths[2] * last + momentum`. Before the first step all four are empty. A step writes into these vectors and
    takes them from the state before it, which then counts as one without momentum.
    """

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
    lengths: tuple[float, ...] = ()
    """(3,) for a large model: the lengths of the last move and of the one before, and how many times the last move
    contains the last update beside the lead; empty for a small one."""

    @property
    def moved(self) -> float:
        """Length of the last move; 0 = no move yet."""
        return self.lengths[0] if self.lengths else norm(self.move)

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
        none = zero[:0] if zero.shape[0] > LARGE else zero
        return MomentumState(momentum=none, last=none, move=none, move_before=none)

    def apply(self, state: L, model: Vector, answers: Answers) -> tuple[Vector, L]:
        """Return the next model to send, and the state."""
        return self.limited(state, model, answers)

    def limited(
        self, state: L, model: Vector, answers: Answers, limit: Limit | None = None, *, reuse: bool = False
    ) -> tuple[Vector, L]:
        """Return the result of `apply` with a move that is cut to the part that `limit` returns.

        Args:
            state: the state.
            model: the model that was sent.
            answers: the averaged update and what was measured.
            limit: see `Limit`; None = no limit.
            reuse: write the next model of a large model over `answers.step`.
        """
        if answers.step.shape[0] > LARGE:
            return self._in_parts(state, model, answers, limit, reuse=reuse)
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
        if limit is not None and (part := limit(norm(move))) < 1:
            move, momentum = part * move, part * momentum
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

    def _in_parts(
        self, state: L, model: Vector, answers: Answers, limit: Limit | None, *, reuse: bool
    ) -> tuple[Vector, L]:
        """Return the result of `limited` for a large model.

        The same formulas, with all lengths from inner products, in one pass over the vectors and another that writes
        the results over them, so that there are no copies.
        """
        update, base = np.asarray(answers.step), np.asarray(model)
        length = len(update)
        lead, last, before = (np.asarray(each) for each in (state.momentum, state.last, state.move_before))
        moved_last, moved_before, within = state.lengths or (0.0, 0.0, 0.0)

        def products(part: slice) -> tuple[float, ...]:
            u = np.asarray(update[part], dtype=np.float64)
            m, u_before, z = (_values(each, part, length) for each in (lead, last, before))
            d, change = within * u_before + m, u_before - u
            pairs = (u, u), (u, m), (m, m), (change, change), (change, z), (d, z)
            return tuple(inner(one, other) for one, other in pairs)

        uu, um, mm, cc, cz, dz = np.sum(in_parts(products, length), axis=0).tolist()
        numerator, denominator, curvature = state.curvature_numerator, state.curvature_denominator, 0.0
        if (lengths := moved_last * moved_before) > 0:
            numerator = SUMS_KEPT * numerator + dz * cz / lengths**2
            denominator = SUMS_KEPT * denominator + (dz / lengths) ** 2
            curvature = numerator / denominator if denominator > 0 else 0.0
        carried, age = carried_part(state.age, uu + um, curvature)
        allowed = fedexp_factor(answers.mean_square, uu, self.power) * (1 - carried) if self.power else 1.0
        after = state.next(allowed, change=math.sqrt(cc), moved=moved_last, length=math.sqrt(uu))
        factor = after.step_factor
        beyond = _square(  # of step + momentum - update
            factor - 1 + carried * factor, carried, uu, um, mm
        )
        part_allowed, after = after.within_budget(math.sqrt(beyond))
        kept, by_update = part_allowed * carried, 1 + part_allowed * (factor - 1)
        moved = math.sqrt(_square(by_update + kept * factor, kept, uu, um, mm))
        if limit is not None and (cut := limit(moved)) < 1:
            kept, by_update, moved = cut * kept, cut * by_update, cut * moved
        kind = base.dtype if base.dtype == np.float32 else np.dtype(np.float64)
        found = update if reuse and update.dtype == kind else np.empty(length, dtype=kind)
        momentum, stored, move = (
            _buffer(vector, quantised.row_bytes(length, bits))
            for vector, bits in ((lead, LEAD_BITS), (last, STORED_BITS), (before, MOVE_BITS))
        )
        for name in ("momentum", "last", "move_before", "lengths"):  # a step that is interrupted leaves no half of it
            object.__setattr__(state, name, getattr(state, name)[:0])

        def write(part: slice) -> None:
            u = update[part]
            m, u_before = (_values(each, part, length, u.dtype) for each in (lead, last))
            carried_on = kept * (m + factor * u)
            quantised.put(move, within * u_before + m, length, part.start)
            quantised.put(stored, u, length, part.start)
            quantised.put(momentum, carried_on, length, part.start)
            found[part] = base[part] + (by_update * u + carried_on)  # last: it may be `update`

        in_parts(write, length)
        return same(model, found), replace(
            after,
            momentum=same(model, momentum),
            last=same(model, stored),
            age=age,
            carried=carried,
            move_before=same(model, move),
            curvature_numerator=numerator,
            curvature_denominator=denominator,
            lengths=(moved, moved_last, by_update),
        )


def _values(vector: NDArray[Any], part: slice, length: int, kind: Any = np.float64) -> FloatArray:
    """Return a part of a vector of the state; an empty vector is 0."""
    if not vector.size:
        return np.zeros(len(range(*part.indices(length))), dtype=kind)
    found = quantised.restored(vector, length, part.start, part.stop) if vector.dtype == np.uint8 else vector[part]
    return found.astype(kind, copy=False)


def _square(by_update: float, by_lead: float, uu: float, um: float, mm: float) -> float:
    """Return |by_update u + by_lead m|^2 from inner products."""
    return max(by_update**2 * uu + 2 * by_update * by_lead * um + by_lead**2 * mm, 0.0)


def _buffer(vector: NDArray[Any], size: int) -> quantised.Bytes:
    """Return the vector to write over, or a new one if it cannot hold so many bytes."""
    fits = vector.dtype == np.uint8 and vector.size == size and vector.flags.writeable
    return vector if fits else np.empty(size, dtype=np.uint8)
