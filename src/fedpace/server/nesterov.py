"""Nesterov's momentum with restarts (`fedpace.core.acceleration`), and long steps while it builds up.

What `pace` asks for: the shared model runs ahead of the averages by a part of how far they moved last, and the averaged
step is as long as FedExP, the curvature and the budget allow (`fedpace.core.extrapolation`). Momentum lengthens steps
too: where rounds agree on a direction, it goes 1 / (1 - part) times as far in it. That counts as part of what FedExP
allows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from fedpace.core.acceleration import carried_part
from fedpace.core.checks import between
from fedpace.core.extrapolation import StepLength, fedexp_factor
from fedpace.core.stepping import Answers, Part, Vector, norm


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
        return Lead(momentum=zero, last=zero)

    def apply(self, state: L, model: Vector, answers: Answers) -> tuple[Vector, L]:
        """Return the model that is sent next."""
        update, square = answers.step, norm(answers.step) ** 2
        carried, age = carried_part(state.age, square + float(update @ state.momentum))
        allowed = fedexp_factor(answers.mean_square, square, self.power) * (1 - carried) if self.power else 1.0
        after = state.next(allowed, change=norm(update - state.last), length=math.sqrt(square))
        step = after.step_factor * update
        momentum = (state.momentum + step) * carried
        part, after = after.within_budget(norm(step + momentum - update))
        step, momentum = update + part * (step - update), part * momentum
        move = step + momentum
        return model + move, replace(after, momentum=momentum, last=update, age=age, carried=carried, moved=norm(move))
