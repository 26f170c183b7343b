"""Summarises a delay model: quantiles, slow fraction, time of a full round, and a histogram.

For one fleet, and for many fleets pooled:

    summarise(config.build(100, model_bytes=1_600_000, seed=0))
    summarise(*(config.build(100, model_bytes=1_600_000, seed=seed) for seed in range(300)))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpace._base.checks import FloatArray, IntArray, between, frozen, whole
from fedpace._base.errors import InputError
from fedpace._base.options import check_option
from fedpace.core.types import DelayModel
from fedpace.delays.base import NonNegative

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


@dataclass(frozen=True, eq=False)
class DelaySummary:
    """The result of `summarise`. All times are in seconds."""

    clients: int
    """Number of clients per fleet."""
    fleets: int
    rounds: int
    """Number of rounds drawn per fleet."""
    levels: tuple[float, ...]
    quantiles: FloatArray
    """(levels,) quantiles of all drawn delays."""
    mean: float
    threshold: float
    slow: float
    """Fraction of drawn delays above the threshold."""
    full_round: float
    """Mean of the largest delay per round: the cost of waiting for all clients."""
    edges: FloatArray
    """(bins + 1,) edges of the histogram, evenly spaced on a logarithmic scale."""
    counts: IntArray
    """(bins,) number of drawn delays per bin."""

    def rows(self) -> list[tuple[str, float]]:
        """Return the numbers with their names, for a table."""
        table = [(f"p{100 * level:g}", float(value)) for level, value in zip(self.levels, self.quantiles, strict=True)]
        share = (f"share above {self.threshold:g} s", self.slow)
        return [*table, ("mean", self.mean), share, ("full round", self.full_round)]


def summarise(
    *models: DelayModel,
    rounds: int = 20,
    threshold: float = 1000.0,
    levels: Sequence[float] = LEVELS,
    bins: int = 20,
) -> DelaySummary:
    """Return a summary of `rounds` rounds drawn from every model; all fleets must have the same size."""
    if not models:
        raise InputError("expected at least one delay model to summarise, but none came")
    whole(rounds, 1, "rounds")
    whole(bins, 1, "bins")
    check_option(NonNegative, threshold, "threshold")
    for level in levels:
        between(level, 0, 1, "a quantile's level")
    sizes = {model.expected().size for model in models}
    if len(sizes) > 1:
        raise InputError(f"expected fleets of one size, but {', '.join(map(str, sorted(sizes)))} clients came")
    seconds = np.array([model.draw(step) for model in models for step in range(rounds)])
    low, high = float(seconds.min()), float(seconds.max())
    if high <= low * (1 + 1e-9):  # all equal: one bin around the value
        low, high = low / 1.5, high * 1.5
    edges = np.geomspace(low, high, bins + 1)
    counts, _ = np.histogram(seconds, edges)
    return DelaySummary(
        clients=sizes.pop(),
        fleets=len(models),
        rounds=rounds,
        levels=tuple(levels),
        quantiles=frozen(np.quantile(seconds, levels)),
        mean=float(seconds.mean()),
        threshold=threshold,
        slow=float(np.mean(seconds > threshold)),
        full_round=float(seconds.max(axis=1).mean()),
        edges=frozen(edges),
        counts=frozen(counts, np.int64),
    )
