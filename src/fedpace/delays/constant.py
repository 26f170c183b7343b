"""`constant`: every client takes the same time in every round. Ours: only the number of rounds then matters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedpace._base.options import Options
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
class ConstantDelays(Options):
    """One number for all clients; a log-normal factor per round if asked."""

    name: ClassVar[str] = "constant"

    seconds: Positive = 60.0
    """Mean seconds of a round."""
    jitter: Sigma = 0.0
    """Sigma of the log-normal factor per round, which has mean 1."""
    compute_share: ComputeShare = DEFAULT_COMPUTE_SHARE
    """Part of the seconds that grows with the work of a task, if a scheme sets it; an assumption."""

    def build(self, clients: int, *, model_bytes: int, seed: int) -> DelayModel:
        """Return the delays of `clients` clients; the size of the model has no effect."""
        check_model_bytes(model_bytes)
        mean = np.full(check_clients(clients), float(self.seconds))
        return MeanWithJitter(mean, self.compute_share * mean, sigma=self.jitter, seed=seed, what=self.name)
