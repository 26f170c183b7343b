"""`uniform`: client means spread evenly over a range, without a tail.

Ours; close to the paper's synthetic delays for small models, because compute time then dominates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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
    checked_range,
)


@dataclass(frozen=True)
class UniformDelays(Options):
    """Uniform means of clients; a log-normal factor per round if asked."""

    name: ClassVar[str] = "uniform"

    seconds: tuple[float, float] = (15.0, 100.0)
    """Range over clients of the expected seconds of a round."""
    jitter: Sigma = 0.0
    """Sigma of the log-normal factor per round, which has mean 1."""
    compute_share: ComputeShare = DEFAULT_COMPUTE_SHARE
    """Part of the seconds that grows with the work of a task, if a scheme sets it; an assumption."""

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        super().__post_init__()
        object.__setattr__(self, "seconds", checked_range(self.seconds, Positive, "seconds of uniform"))

    def build(self, clients: int, *, model_bytes: int, seed: int) -> DelayModel:
        """Return the delays of `clients` clients; the size of the model has no effect."""
        clients = check_clients(clients)
        check_model_bytes(model_bytes)
        mean = stream(seed, "delay", self.name, "mean").uniform(*self.seconds, clients)
        return MeanWithJitter(mean, self.compute_share * mean, sigma=self.jitter, seed=seed, what=self.name)
