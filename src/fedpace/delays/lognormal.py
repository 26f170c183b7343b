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

from fedpace._base.options import Options
from fedpace._base.rng import stream
from fedpace.core.types import DelayModel
from fedpace.delays.base import (
    DEFAULT_COMPUTE_SHARE,
    ComputeShare,
    MeanWithJitter,
    Positive,
    Sigma,
    check_clients,
    check_model_bytes,
)


@dataclass(frozen=True)
class LognormalDelays(Options):
    """Client means are log-normal, and so is the noise of every round."""

    name: ClassVar[str] = "lognormal"

    median: Positive = 100.0
    """Median over clients of the expected seconds of a round."""
    sigma: Sigma = 1.5
    """Standard deviation over clients of the logarithm of the mean: 0 = all equal, 1.5 = a long tail."""
    jitter: Sigma = 0.3
    """Sigma of the log-normal factor per round, which has mean 1; 0 = constant."""
    compute_share: ComputeShare = DEFAULT_COMPUTE_SHARE
    """Part of the seconds that grows with the work of a task, if a scheme sets it; an assumption."""

    def build(self, clients: int, *, model_bytes: int, seed: int) -> DelayModel:
        """Return the delays of `clients` clients; the size of the model has no effect."""
        clients = check_clients(clients)
        check_model_bytes(model_bytes)
        normal = stream(seed, "delay", self.name, "mean").standard_normal(clients)
        mean = self.median * np.exp(self.sigma * normal)
        return MeanWithJitter(mean, self.compute_share * mean, sigma=self.jitter, seed=seed, what="lognormal")
