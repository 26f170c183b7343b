"""Matrices over the clients whose moments are known, whatever number has joined, and how large they may become.

A fleet has many clients that joined and few that have answered. Matrices over pairs of clients are therefore kept over
the known ones only; `MomentBank.heterogeneity` and `MomentBank.gram` spread them over all rows for whoever asks.

Sizes, as numbers of clients:
- up to `SKETCH_ABOVE` known clients, everything is exact, but for `directions` (`fedpace.moments.bank.EXACT_LIMIT`);
- above it, distances come from sketches of the moments (`fedpace.moments.fleet`), which cost one matrix product;
- above `LARGEST_MATRIX`, no matrix is made: `best_prefix` and `directions` do not need one.
"""

from __future__ import annotations

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.errors import InputError
from fedpace.core.protocols import Moments

SKETCH_ABOVE = 5000
"""Known clients up to which distances of pairs are exact: beyond it, 12 million norms would take minutes."""
LARGEST_MATRIX = 20_000
"""Rows of the largest matrix over pairs of clients that is made: 3.2 GB."""


def check_matrix(count: int, what: str) -> None:
    """Refuse a matrix over the pairs of so many clients that it would not fit into memory."""
    if count > LARGEST_MATRIX:
        raise InputError(
            f"the {what} of {count:,} clients is a matrix of {8e-9 * count**2:,.1f} GB, and the limit is "
            f"{LARGEST_MATRIX:,} clients: ask `known_heterogeneity` or `known_gram`, which leave out clients without a "
            "moment, or `best_prefix` or `directions`, which need no matrix"
        )


def spread(among: FloatArray, rows: IntArray, count: int, what: str) -> FloatArray:
    """Return a matrix over `rows` as one over all `count` rows, NaN elsewhere, read-only."""
    if rows.size == count:
        return among
    check_matrix(count, what)
    result = np.full((count, count), np.nan)
    result[np.ix_(rows, rows)] = among
    result.setflags(write=False)
    return result


def known_heterogeneity(moments: Moments, *, ridge: float, shares: FloatArray | None = None) -> FloatArray:
    """Return B among the known clients, in the order of their rows; a store of one's own need not have the method."""
    return _known(moments, "heterogeneity", ridge, shares)


def known_gram(moments: Moments, *, ridge: float, shares: FloatArray | None = None) -> FloatArray:
    """Return the whitened Gram matrix among the known clients, as `known_heterogeneity` returns B."""
    return _known(moments, "gram", ridge, shares)


def _known(moments: Moments, what: str, ridge: float, shares: FloatArray | None) -> FloatArray:
    method = getattr(moments, f"known_{what}", None)
    if method is not None:
        return np.asarray(method(ridge=ridge, shares=shares))
    rows = np.flatnonzero(moments.known)
    return np.asarray(getattr(moments, what)(ridge=ridge, shares=shares)[np.ix_(rows, rows)])
