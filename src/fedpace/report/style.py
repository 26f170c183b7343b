"""Colours, dashes and axes that the picture and the page share, so that a scheme looks the same in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace.records.run import RunRecord
from fedpace.report.tables import Comparison

PALETTE = ("#0072b2", "#ff5a00", "#a50fff", "#b4875a", "#ff2de1", "#d2001e")
"""Found by search: each has a contrast of 3 or more on the light and on the dark page, and any two, the neutral one
included, are told apart with every common colour blindness (tests/report/test_style.py measures both)."""
NEUTRAL = "#7f7f7f"
"""Of the baseline, which the others are seen against."""
BANDED = 6
"""Schemes up to which bands over seeds are drawn: more of them over each other show nothing."""
DASHES = ("solid", "dash", "dot", "dashdot")
"""By plotly's names."""

SPAN = 30.0
"""Fastest to slowest scheme: beyond it, a linear axis shows the fastest as a vertical line."""


@dataclass(frozen=True)
class Look:
    """How a scheme is drawn."""

    colour: str
    dash: str


def looks(comparison: Comparison) -> dict[str, Look]:
    """Return how each scheme is drawn: colours first, then dashes once the colours are used up."""
    found: dict[str, Look] = {}
    for scheme in comparison.schemes:
        if scheme.label == comparison.baseline:
            found[scheme.label] = Look(NEUTRAL, DASHES[0])
            continue
        position = len(found) - (comparison.baseline in found)
        cycle, colour = divmod(position, len(PALETTE))
        found[scheme.label] = Look(PALETTE[colour], DASHES[cycle % len(DASHES)])
    return found


def delays_of(runs: Sequence[RunRecord]) -> FloatArray:
    """Return the clients' mean delays under the first seed, without those that never answer."""
    # Read back from JSON, an infinite delay is null.
    recorded = [np.nan if delay is None else delay for delay in runs[0].info.expected_delays]
    delays = np.array(recorded, dtype=np.float64)
    return delays[np.isfinite(delays)]


def long_tailed(delays: FloatArray) -> bool:
    """Whether the slow clients are so much slower than the usual one that a linear axis hides the usual one."""
    positive = delays[delays > 0]
    if len(positive) < 2:
        return False
    median = float(np.median(positive))
    return bool(np.quantile(positive, 0.95) > 4 * median or positive.max() > 20 * median)


def log_time(runs: Sequence[RunRecord], comparison: Comparison) -> bool:
    """Whether virtual time needs a logarithmic axis."""
    ends = [result.ended for scheme in comparison.schemes for result in scheme.results if result.ended > 0]
    spread = bool(ends) and max(ends) > SPAN * min(ends)
    return bool(ends) and (spread or long_tailed(delays_of(runs)))


def histogram(delays: FloatArray) -> tuple[FloatArray, FloatArray, bool]:
    """Return counts, edges and whether the edges are spaced logarithmically."""
    logarithmic = long_tailed(delays) and bool((delays > 0).all())
    bins = int(np.clip(2 * np.sqrt(len(delays)), 8, 40))
    low, high = float(delays.min()), float(delays.max())
    if high - low <= 1e-9 * max(abs(high), 1e-300):
        # All alike: one bar of a visible width around the value.
        pad = 0.05 * abs(high) or 0.5
        edges = np.array([low - pad, high + pad])
        logarithmic = False
    elif logarithmic:
        edges = np.geomspace(low, high, bins + 1)
    else:
        edges = np.linspace(low, high, bins + 1)
    # Rounding may put the extremes outside of edges that were made from them.
    edges[0], edges[-1] = min(edges[0], low), max(edges[-1], high)
    counts, _ = np.histogram(delays, bins=edges)
    return counts.astype(np.float64), edges, logarithmic
