"""Base class of FedAdam and FedYogi: Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), Algorithm 2.

    m <- b1 m + (1 - b1) u,    v <- update rule of the subclass,    x <- x + lr m / (sqrt(v) + tau)

u is the averaged update. As in the paper, there is no bias correction, and v starts at tau^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedpace._base.checks import above, real
from fedpace._base.errors import InputError
from fedpace.core.stepping import Answers, Part, Vector


@dataclass(frozen=True, eq=False)
class Moments:
    """Running mean and running second moment of the averaged updates."""

    mean: Vector
    variance: Vector


@dataclass(frozen=True)
class Adaptive:
    """The averaged step, scaled by coordinate.

    Args:
        lr: the server's step size.
        beta_1: part of the running mean kept per step.
        beta_2: part of the running variance kept per step.
        tau: added to the divisor of each coordinate; smaller values make the rule more adaptive.
    """

    name: ClassVar[str]
    takes: ClassVar[frozenset[Part]] = frozenset()

    lr: float = 0.1
    beta_1: float = 0.9
    beta_2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        above(self.lr, 0, f"lr of {self.name}")
        above(self.tau, 0, f"tau of {self.name}")
        for option in ("beta_1", "beta_2"):
            if not 0 <= real(getattr(self, option), f"{option} of {self.name}") < 1:
                raise InputError(f"{option} of {self.name} must lie in [0, 1), but {getattr(self, option)!r} came")

    def init(self, zero: Vector) -> Moments:
        """Return the state before the first step."""
        return Moments(zero, zero + self.tau**2)

    def apply(self, state: Moments, model: Vector, answers: Answers) -> tuple[Vector, Moments]:
        """Return the model after the step."""
        mean = self.beta_1 * state.mean + (1 - self.beta_1) * answers.step
        variance = self.variance(state.variance, answers.step**2)
        return model + self.lr * mean / (variance**0.5 + self.tau), Moments(mean, variance)

    def variance(self, before: Vector, square: Vector) -> Vector:
        """Return the running variance after one more squared update."""
        raise NotImplementedError
