"""Nesterov's momentum with restarts (`fedpace.core.acceleration`), and FedExP's long steps while it builds up.

What `pace` asks for: the shared model runs ahead of the averages by a part of how far they moved last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedpace.core.acceleration import Momentum
from fedpace.core.checks import between
from fedpace.core.extrapolation import extrapolation
from fedpace.core.stepping import Answers, Part, Vector


@dataclass(frozen=True, eq=False)
class Lead:
    """How far the model that is sent has run ahead of the averaged one."""

    ahead: Vector
    age: int = 0
    """Steps since the last restart."""
    stretch: float = 1.0
    """What the last averaged step was multiplied by."""
    carried: float = 0.0
    """The part of the last move that the next one carries on."""


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
        return Lead(zero)

    def apply(self, state: Lead, model: Vector, answers: Answers) -> tuple[Vector, Lead]:
        """Return the model that is sent next."""
        square = float(answers.step @ answers.step)
        momentum = Momentum(state.age)
        carried = momentum.carried(square + float(answers.step @ state.ahead))
        stretch = extrapolation(answers.mean_square, square, self.power, carried=carried) if self.power else 1.0
        step = stretch * answers.step
        ahead = (state.ahead + step) * carried
        return model + (step + ahead), Lead(ahead, momentum.age, stretch, carried)
