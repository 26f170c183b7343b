"""`constant`: every client takes the same time in every round. Ours: only the number of rounds then matters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedpace.core.types import DelayModel
from fedpace.delays.base import WIDEST, MeanWithJitter, count_of, number, size_of


@dataclass(frozen=True)
class ConstantDelays:
    """One number for all clients; a log-normal factor per round if asked."""

    name: ClassVar[str] = "constant"

    seconds: float = 60.0
    """Mean seconds of a round."""
    jitter: float = 0.0
    """Sigma of the log-normal factor per round, which has mean 1."""

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        number(self.seconds, "seconds", low=0.0, above=True)
        number(self.jitter, "jitter", low=0.0, high=WIDEST)

    def build(self, clients: int, *, model_bytes: int, seed: int) -> DelayModel:
        """Return the delays of `clients` clients; the size of the model has no effect."""
        size_of(model_bytes)
        mean = np.full(count_of(clients), float(self.seconds))
        return MeanWithJitter(mean, sigma=self.jitter, seed=seed, what=self.name)
