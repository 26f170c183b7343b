"""Which updates of a step are refused before they touch the shared model: one rule for every host.

Not finite is refused always. Too long is refused where the others say what is usual: further above the median of the
cohort's updates, or of recent ones, than `SPREADS` robust standard deviations of their logarithms, and than a factor of
`LENGTH`. Clients whose data
are rare, or many, send updates a few times as long as the others'; one that is to undo the work of all others must be
longer than theirs together.
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
    logarithms = np.log(usual)
    middle = float(np.median(logarithms))
    spread = 1.4826 * float(np.median(np.abs(logarithms - middle)))
    return math.exp(min(middle + max(math.log(LENGTH), SPREADS * spread), 700.0))
