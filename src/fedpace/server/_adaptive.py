"""Base class of FedAdam and FedYogi: Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), Algorithm 2.

    m <- b1 m + (1 - b1) u,    v <- update rule of the subclass,    x <- x + lr m / (sqrt(v) + tau)

u is the averaged update. As in the paper, there is no bias correction, and v starts at tau^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fedpace._base.options import Above, Between, Options
from fedpace.core.server_rule import Answers, Part, Vector


@dataclass(frozen=True, eq=False)
class AdaptiveState:
    """Running mean and running second moment of the averaged updates."""

    mean: Vector
    variance: Vector


@dataclass(frozen=True)
class Adaptive(Options):
    """The averaged step, scaled by coordinate.

    Args:
        lr: the server's step size.
        beta_1: part of the running mean kept per step.
        beta_2: part of the running variance kept per step.
        tau: added to the divisor of each coordinate; smaller values make the rule more adaptive.
    """

    name: ClassVar[str]
    takes: ClassVar[frozenset[Part]] = frozenset()

    lr: Annotated[float, Above(0)] = 0.1
    beta_1: Annotated[float, Between(0, 1, "[)")] = 0.9
    beta_2: Annotated[float, Between(0, 1, "[)")] = 0.99
    tau: Annotated[float, Above(0)] = 1e-3

    def init(self, zero: Vector) -> AdaptiveState:
        """Return the state before the first step."""
        return AdaptiveState(zero, zero + self.tau**2)

    def apply(self, state: AdaptiveState, model: Vector, answers: Answers) -> tuple[Vector, AdaptiveState]:
        """Return the model after the step."""
        mean = self.beta_1 * state.mean + (1 - self.beta_1) * answers.step
        variance = self.variance(state.variance, answers.step**2)
        return model + self.lr * mean / (variance**0.5 + self.tau), AdaptiveState(mean, variance)

    def variance(self, before: Vector, square: Vector) -> Vector:
        """Return the running variance after one more squared update."""
        raise NotImplementedError
