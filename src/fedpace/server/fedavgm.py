"""FedAvgM: heavy-ball momentum on the server.

Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification"
(2019): v <- beta v + u, x <- x + lr v, where u is the averaged update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fedpace._base.options import Above, Between, Options
from fedpace.core.server_rule import Answers, Part, Vector


@dataclass(frozen=True, eq=False)
class Velocity:
    """The decaying sum of past averaged updates."""

    velocity: Vector


@dataclass(frozen=True)
class Fedavgm(Options):
    """The averaged step with momentum.

    Args:
        momentum: part of the velocity kept per step.
        lr: the server's step size.
    """

    name: ClassVar[str] = "fedavgm"
    takes: ClassVar[frozenset[Part]] = frozenset()

    momentum: Annotated[float, Between(0, 1, "[)")] = 0.9
    lr: Annotated[float, Above(0)] = 1.0

    def init(self, zero: Vector) -> Velocity:
        """Return a velocity of 0."""
        return Velocity(zero)

    def apply(self, state: Velocity, model: Vector, answers: Answers) -> tuple[Vector, Velocity]:
        """Return the model after the step."""
        velocity = self.momentum * state.velocity + answers.step
        return model + self.lr * velocity, Velocity(velocity)
