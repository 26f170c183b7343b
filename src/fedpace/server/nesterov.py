"""The server step `nesterov`: Nesterov momentum with restarts and FedExP's longer steps; the default of `pace`.

The model that clients receive runs ahead of the averaged model by a part of the last move
(`fedpace.core.acceleration`). The averaged update is also lengthened, as far as FedExP, the curvature and a budget
allow (`fedpace.core.extrapolation`). Momentum lengthens steps too: if rounds agree on a direction, the model moves 1 /
(1 - part) times as far along it. This counts toward FedExP's factor. The curvature along the path limits momentum as
well, so that the model does not overshoot where the plain average already reaches the minimum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from fedpace._base.checks import between
from fedpace.core.acceleration import carried_part
from fedpace.core.extrapolation import StepLength, fedexp_factor
from fedpace.core.stepping import Answers, Part, Vector, norm

SUMS_KEPT = 0.5
"""Part of the curvature sums kept per step; small, because the curvature changes with the direction of the moves."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Lead(StepLength):
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
    bends: float = 0.0
    """Numerator of the curvature estimate: decaying sum of (change of the update along the previous move) x overlap."""
    ways: float = 0.0
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
            return 0.0, self.bends, self.ways
        way = float(self.move @ self.move_before) / lengths
        change = float((self.last - update) @ self.move_before) / lengths
        bends, ways = SUMS_KEPT * self.bends + way * change, SUMS_KEPT * self.ways + way * way
        return (bends / ways if ways > 0 else 0.0), bends, ways


L = TypeVar("L", bound=Lead)


@dataclass(frozen=True)
class Nesterov:
    """The averaged step, lengthened, with Nesterov momentum.

    Args:
        power: exponent of FedExP's factor, with momentum counted as part of the factor; 0 = do not lengthen steps.
    """

    name: ClassVar[str] = "nesterov"
    takes: ClassVar[frozenset[Part]] = frozenset({"squares"})

    power: float = 1.0

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        between(self.power, 0, 1, "power of nesterov")

    def init(self, zero: Vector) -> Lead:
        """Return the state before the first step: no lead."""
        return Lead(momentum=zero, last=zero, move=zero, move_before=zero)

    def apply(self, state: L, model: Vector, answers: Answers) -> tuple[Vector, L]:
        """Return the next model to send, and the state."""
        update, square = answers.step, norm(answers.step) ** 2
        curvature, bends, ways = state.with_curvature(update)
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
            bends=bends,
            ways=ways,
        )
