"""FedAvgM: heavy-ball momentum on the server.

Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification"
(2019): v <- beta v + u, x <- x + lr v, where u is the averaged update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedpace._base.checks import above, real
from fedpace._base.errors import InputError
from fedpace.core.stepping import Answers, Part, Vector


@dataclass(frozen=True, eq=False)
class Velocity:
    """The decaying sum of past averaged updates."""

    velocity: Vector


@dataclass(frozen=True)
class Fedavgm:
    """The averaged step with momentum.

    Args:
        momentum: part of the velocity kept per step.
        lr: the server's step size.
    """

    name: ClassVar[str] = "fedavgm"
    takes: ClassVar[frozenset[Part]] = frozenset()

    momentum: float = 0.9
    lr: float = 1.0

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        if not 0 <= real(self.momentum, "momentum of fedavgm") < 1:
            raise InputError(f"momentum of fedavgm must lie in [0, 1), but {self.momentum!r} came")
        above(self.lr, 0, "lr of fedavgm")

    def init(self, zero: Vector) -> Velocity:
        """Return a velocity of 0."""
        return Velocity(zero)

    def apply(self, state: Velocity, model: Vector, answers: Answers) -> tuple[Vector, Velocity]:
        """Return the model after the step."""
        velocity = self.momentum * state.velocity + answers.step
        return model + self.lr * velocity, Velocity(velocity)
