"""FADAS's server step: AMSGrad with a rate that falls if answers are too old.

Wang, Wang, Lu and Chen, "FADAS: Towards Federated Adaptive Asynchronous Optimization" (ICML 2024). u is the mean of the
buffered updates and d the largest delay among them, in steps:

    m <- b1 m + (1 - b1) u,    v <- b2 v + (1 - b2) u^2,    w <- max(w, v),
    x <- x + rate m / (sqrt(w) + tau),    rate = lr if d <= tolerated, else min(lr, 1 / d).

As in the paper, there is no bias correction. m, v and w start at 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fedpace._base.options import FINITE, Above, AtLeast, Between, Options
from fedpace.core.server_rule import Answers, Part, Vector


@dataclass(frozen=True, eq=False)
class FadasState:
    """Running mean, running second moment and the largest second moment so far."""

    mean: Vector
    variance: Vector
    largest: Vector


@dataclass(frozen=True)
class Fadas(Options):
    """AMSGrad on averages; old answers shorten steps.

    Args:
        lr: the server's step size.
        beta_1: part of the running mean kept per step.
        beta_2: part of the running variance kept per step.
        tau: added to the divisor of each coordinate.
        tolerated: largest delay, in steps, with the full rate.
    """

    name: ClassVar[str] = "fadas"
    takes: ClassVar[frozenset[Part]] = frozenset({"sources"})

    lr: Annotated[float, Above(0), FINITE] = 0.01
    beta_1: Annotated[float, Between(0, 1, "[)")] = 0.9
    beta_2: Annotated[float, Between(0, 1, "[)")] = 0.99
    tau: Annotated[float, Above(0), FINITE] = 1e-3
    tolerated: Annotated[int, AtLeast(0)] = 1

    def init(self, zero: Vector) -> FadasState:
        """Return the state before the first step."""
        return FadasState(zero, zero, zero)

    def apply(self, state: FadasState, model: Vector, answers: Answers) -> tuple[Vector, FadasState]:
        """Return the model after the step."""
        delay = max((answers.version - source.version for source in answers.sources), default=0)
        rate = self.lr if delay <= self.tolerated else min(self.lr, 1.0 / delay)
        mean = self.beta_1 * state.mean + (1 - self.beta_1) * answers.step
        variance = self.beta_2 * state.variance + (1 - self.beta_2) * answers.step**2
        largest = variance + (state.largest - variance).clip(0)  # the larger of the two, in NumPy and torch
        return model + rate * mean / (largest**0.5 + self.tau), FadasState(mean, variance, largest)
