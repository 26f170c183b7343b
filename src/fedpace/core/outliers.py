"""Which updates are too long to be honest, where clients differ in how long theirs are.

Not finite always is. Too long is further above the median of the cohort's updates, or of recent ones, than `SPREADS`
robust standard deviations of their logarithms, and than a factor of `LENGTH`. Clients whose data are rare, or many,
send updates a few times as long as the others'; one that is to undo the work of all others must be longer than theirs
together. Hosts that refuse whole models do it by a factor that is an option of theirs (`fedpace.core.screening`).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from fedpace.core.checks import BoolArray, FloatArray

SPREADS, LENGTH = 5.0, 5.0
"""See above."""
FEWEST = 3
"""Updates below which nothing is usual."""
ESTABLISHED = 16
"""Recent updates from which on a small cohort is judged by them too: most of it may be hostile."""
LARGE = 10
"""A cohort of so many shows by itself what is usual, and may show that updates have become longer."""


def refused(lengths: ArrayLike, recent: ArrayLike = ()) -> BoolArray:
    """(k,) True where an update must not count.

    Args:
        lengths: Euclidean lengths of the updates of one step; NaN or infinite where any entry is.
        recent: lengths of those that were accepted before.
    """
    came, before = np.asarray(lengths, dtype=np.float64), np.asarray(recent, dtype=np.float64)
    finite = np.isfinite(came)
    moved = came[finite & (came > 0)]
    here = longest(moved) if moved.size >= FEWEST else math.inf
    limit = here
    if before.size >= ESTABLISHED and moved.size < LARGE:
        limit = min(here, longest(before))
    with np.errstate(invalid="ignore"):
        return np.asarray(~finite | (came > limit))


def longest(usual: FloatArray) -> float:
    """Return the greatest length that is not refused where these are usual."""
    middle, spread = robust(np.log(usual))
    return math.exp(min(middle + max(math.log(LENGTH), SPREADS * spread), 700.0))


def robust(values: FloatArray) -> tuple[float, float]:
    """Return the median, and the standard deviation as half of the values have it."""
    middle = float(np.median(values))
    return middle, 1.4826 * float(np.median(np.abs(values - middle)))


def trimmed(values: FloatArray, least: float) -> tuple[float, float]:
    """Return the same of the values that are not far off, so that a fifth of liars does not look like spread.

    Nothing within three times `least` of the median is far off.
    """
    middle, spread = robust(values)
    return robust(values[np.abs(values - middle) <= 3 * max(spread, least)])
