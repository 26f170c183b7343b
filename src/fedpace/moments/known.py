"""Pairwise matrices over clients with known moments, and limits on their size.

In a large fleet, many clients have joined but few have answered. Matrices over pairs of clients therefore cover the
known clients only. `MomentBank.heterogeneity` and `MomentBank.gram` expand them to all rows on request.

Limits, as numbers of clients:
- up to `SKETCH_ABOVE` known clients, everything is exact, except `directions` (`fedpace.moments.bank.EXACT_LIMIT`);
- above it, distances come from sketches of the moments (`fedpace.moments.fleet`), at the cost of one matrix product;
- above `LARGEST_MATRIX`, asking for a matrix raises an error; `best_prefix` and `directions` need none.
"""

from __future__ import annotations

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.errors import InputError
from fedpace.core.protocols import Moments

SKETCH_ABOVE = 5000
"""Largest number of known clients with exact pairwise distances; beyond, 12 million norms would take minutes."""
LARGEST_MATRIX = 20_000
"""Largest number of rows of a pairwise matrix: 3.2 GB."""


def check_matrix(count: int, what: str) -> None:
    """Raise InputError if a pairwise matrix of this many clients is too large."""
    if count > LARGEST_MATRIX:
        raise InputError(
            f"the {what} of {count:,} clients is a matrix of {8e-9 * count**2:,.1f} GB, and the limit is "
            f"{LARGEST_MATRIX:,} clients: ask `known_heterogeneity` or `known_gram`, which leave out clients without a "
            "moment, or `best_prefix` or `directions`, which need no matrix"
        )


def spread(among: FloatArray, rows: IntArray, count: int, what: str) -> FloatArray:
    """Return a matrix over `rows` expanded to all `count` rows, read-only, with NaN elsewhere."""
    if rows.size == count:
        return among
    check_matrix(count, what)
    result = np.full((count, count), np.nan)
    result[np.ix_(rows, rows)] = among
    result.setflags(write=False)
    return result


def known_heterogeneity(moments: Moments, *, ridge: float, shares: FloatArray | None = None) -> FloatArray:
    """Return B among the known clients, in row order; also works for custom stores that lack this method."""
    return _known(moments, "heterogeneity", ridge, shares)


def known_gram(moments: Moments, *, ridge: float, shares: FloatArray | None = None) -> FloatArray:
    """Return the whitened Gram matrix among the known clients, in row order; also works for custom stores."""
    return _known(moments, "gram", ridge, shares)


def _known(moments: Moments, what: str, ridge: float, shares: FloatArray | None) -> FloatArray:
    method = getattr(moments, f"known_{what}", None)
    if method is not None:
        return np.asarray(method(ridge=ridge, shares=shares))
    rows = np.flatnonzero(moments.known)
    return np.asarray(getattr(moments, what)(ridge=ridge, shares=shares)[np.ix_(rows, rows)])
