"""Nesterov's momentum with restarts (`fedpace.core.acceleration`), and long steps while it builds up.

What `pace` asks for: the shared model runs ahead of the averages by a part of how far they moved last, and the averaged
step is as long as FedExP, the curvature and the budget allow (`fedpace.core.extrapolation`). Momentum lengthens steps
too: where rounds agree on a direction, it goes 1 / (1 - part) times as far in it. That counts as part of what FedExP
allows, and is limited by how far the plain average goes already.
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
"""What the sums that tell the curvature along the way keep in a step: it changes as soon as the direction does."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Lead(StepLength):
    """How far the model that is sent has run ahead of the averaged one, and what past steps were like."""

    momentum: Vector
    """How far ahead that is."""
    last: Vector
    """The averaged update of the last step."""
    age: int = 0
    """Steps since the last restart."""
    carried: float = 0.0
    """The part of the last move that the next one carries on."""
    move: Vector
    """The last move of the model that is sent."""
    move_before: Vector
    """The one before that."""
    bends: float = 0.0
    """Sum over steps of how much updates changed along a move, times the move; what is older counts for less."""
    ways: float = 0.0
    """The same sum of the moves' squares: the curvature is the quotient."""

    @property
    def moved(self) -> float:
        """How far that was; 0 = there was none."""
        return norm(self.move)

    def with_curvature(self, update: Vector) -> tuple[float, float, float]:
        """Return the curvature along the way, as the newest update tells it, and the two sums.

        The last move d changed the updates by u - u' = -h d, so that h is to be had from the two; but noise in u' is in
        d too, and noise alone would look like the steepest curvature of all. The move before, z, knows nothing of
        either noise: h is the slope of -<u - u', z> over <d, z>, an instrumental variable, by least squares over steps.
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
    """The averaged step, lengthened and carried on.

    Args:
        power: exponent of FedExP's factor, momentum included: 0 = steps are not lengthened.
    """

    name: ClassVar[str] = "nesterov"
    takes: ClassVar[frozenset[Part]] = frozenset({"squares"})

    power: float = 1.0

    def __post_init__(self) -> None:
        """Refuse options that make no sense."""
        between(self.power, 0, 1, "power of nesterov")

    def init(self, zero: Vector) -> Lead:
        """The model that is sent is the averaged one."""
        return Lead(momentum=zero, last=zero, move=zero, move_before=zero)

    def apply(self, state: L, model: Vector, answers: Answers) -> tuple[Vector, L]:
        """Return the model that is sent next."""
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
