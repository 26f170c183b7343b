"""`uniform`: client means spread evenly over a range, without a tail.

Ours; close to the paper's synthetic delays for small models, because compute time then dominates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedpace._base.rng import stream
from fedpace.core.types import DelayModel
from fedpace.delays.base import WIDEST, MeanWithJitter, count_of, number, size_of, span


@dataclass(frozen=True)
class UniformDelays:
    """Uniform means of clients; a log-normal factor per round if asked."""

    name: ClassVar[str] = "uniform"

    seconds: tuple[float, float] = (15.0, 100.0)
    """Range over clients of the expected seconds of a round."""
    jitter: float = 0.0
    """Sigma of the log-normal factor per round, which has mean 1."""

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        object.__setattr__(self, "seconds", span(self.seconds, "seconds", low=0.0, above=True))
        number(self.jitter, "jitter", low=0.0, high=WIDEST)

    def build(self, clients: int, *, model_bytes: int, seed: int) -> DelayModel:
        """Return the delays of `clients` clients; the size of the model has no effect."""
        clients = count_of(clients)
        size_of(model_bytes)
        mean = stream(seed, "delay", self.name, "mean").uniform(*self.seconds, clients)
        return MeanWithJitter(mean, sigma=self.jitter, seed=seed, what=self.name)
