"""`lognormal`: client means with a long tail, and a log-normal factor per round.

    mean_i = median * exp(sigma * z_i)          z_i standard normal, drawn once
    delay_i(step) = mean_i * exp(jitter * e - jitter^2 / 2)

Ours, not the paper's: a long tail with two parameters. With the defaults, a tenth of the clients exceeds 6.8 times the
median. The factor per round has mean 1, so that `expected()` is the true mean. The seconds cover a whole round; the
size of the model has no effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedpace._base.rng import stream
from fedpace.core.types import DelayModel
from fedpace.delays.base import WIDEST, MeanWithJitter, count_of, number, size_of


@dataclass(frozen=True)
class LognormalDelays:
    """Client means are log-normal, and so is the noise of every round."""

    name: ClassVar[str] = "lognormal"

    median: float = 100.0
    """Median over clients of the expected seconds of a round."""
    sigma: float = 1.5
    """Standard deviation over clients of the logarithm of the mean: 0 = all equal, 1.5 = a long tail."""
    jitter: float = 0.3
    """Sigma of the log-normal factor per round, which has mean 1; 0 = constant."""

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        number(self.median, "median", low=0.0, above=True)
        number(self.sigma, "sigma", low=0.0, high=WIDEST)
        number(self.jitter, "jitter", low=0.0, high=WIDEST)

    def build(self, clients: int, *, model_bytes: int, seed: int) -> DelayModel:
        """Return the delays of `clients` clients; the size of the model has no effect."""
        clients = count_of(clients)
        size_of(model_bytes)
        normal = stream(seed, "delay", self.name, "mean").standard_normal(clients)
        mean = self.median * np.exp(self.sigma * normal)
        return MeanWithJitter(mean, sigma=self.jitter, seed=seed, what="lognormal")
