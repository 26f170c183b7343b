"""Facility location: greedy search for the k rows that are nearest to all columns.

Minimise sum_j w_j min_{i in S} D_ij over |S| = k. The saving, relative to a fictitious facility as far from j as the
farthest row, is monotone and submodular in S. Greedy search therefore reaches at least 1 - 1/e of the largest possible
saving.
- `plain` evaluates every row for every pick.
- `lazy` (Minoux 1978) keeps each row's last saving as an upper bound and evaluates only rows whose bound may win. It
  returns the same picks as `plain`.
- `stochastic` (Mirzasoleiman et al. 2015) evaluates a random part of the rows for every pick.

Mutual nearest neighbours tie by symmetry, up to rounding. Savings within rounding of the best therefore count as equal.
Among them, the row with the smallest total distance wins, then the lowest row, so that the result does not depend on
the order of the rows.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import BoolArray, FloatArray, IntArray, float_array, one_of, shares
from fedpace._base.errors import InputError

Method = Literal["lazy", "stochastic", "plain"]

ROUNDING = 1e-12
"""Savings that differ by less than this part of the largest possible saving count as equal."""
BLOCK = 32
"""Rows that the lazy search evaluates at a time: one NumPy call costs more than a few extra rows."""


def facility_location(
    distance: ArrayLike,
    k: int,
    *,
    method: Method = "lazy",
    weights: ArrayLike | None = None,
    sample: float = 0.1,
    rng: np.random.Generator | None = None,
) -> list[int]:
    """Return the k picked rows of `distance`, in the order of picking.

    Args:
        distance: (n, m) distance, at least 0, from row i (may be picked) to column j (to be represented).
        k: number of rows to pick, at most n.
        method: see the module docstring.
        weights: (m,) weight of each column; equal if None.
        sample: for `stochastic`: part of the rows to evaluate per pick, but at least k rows.
        rng: for `stochastic`: random generator.
    """
    D = float_array(distance, "distances", ndim=2)
    one_of(method, ("lazy", "stochastic", "plain"), "method")
    if D.size == 0 or (D < 0).any():
        raise InputError(f"distances must be at least 0 and not empty, but an array of shape {D.shape} came")
    if not 1 <= k <= len(D):
        raise InputError(f"k must lie between 1 and the {len(D)} rows of the distances, but {k} came")
    if method == "stochastic" and rng is None:
        raise InputError("the stochastic method draws at random: give it an rng")
    search = _Search(D, shares(weights, D.shape[1]))
    picks: list[int] = []
    for _ in range(k):
        if method == "lazy":
            search.refresh_lazily()
        else:
            rows = search.open_rows
            if method == "stochastic" and rng is not None:
                rows = rng.permutation(rows)[: max(k, math.ceil(sample * len(D)))]
            search.refresh(rows)
        picks.append(search.pick())
    return picks


def nearest(distance: FloatArray, picks: ArrayLike) -> tuple[IntArray, FloatArray]:
    """Return for every column the position in `picks` of the nearest pick, and its distance; ties go to the first."""
    chosen = distance[np.asarray(picks, dtype=np.int64)]
    position = np.argmin(chosen, axis=0)
    return position, chosen[position, np.arange(chosen.shape[1])]


class _Search:
    """State of the greedy search."""

    def __init__(self, distance: FloatArray, weights: FloatArray) -> None:
        self.distance = distance
        self.weights = weights
        self.reach = distance.max(axis=0)
        """Distance of every column to its nearest pick; at first, to the fictitious facility."""
        self.taken: BoolArray = np.zeros(len(distance), dtype=np.bool_)
        self.fresh: BoolArray = np.zeros(len(distance), dtype=np.bool_)
        self.saving = np.full(len(distance), math.inf)
        """Exact for fresh rows, an upper bound for the others."""
        scale = float(self.reach @ weights) or 1.0
        self.tolerance = ROUNDING * scale
        total = np.round(distance @ weights / scale, 9)
        self.rank = np.argsort(np.lexsort((np.arange(len(distance)), total)))

    @property
    def open_rows(self) -> IntArray:
        return np.flatnonzero(~self.taken)

    def refresh(self, rows: IntArray) -> None:
        """Compute the savings of `rows`."""
        self.saving[rows] = np.maximum(self.reach - self.distance[rows], 0.0) @ self.weights
        self.fresh[rows] = True

    def refresh_lazily(self) -> None:
        """Compute savings, largest bound first, until no other bound can reach the best."""
        rows = self.open_rows
        rows = rows[np.argsort(-self.saving[rows], kind="stable")]
        best = -math.inf
        for start in range(0, rows.size, BLOCK):
            block = rows[start : start + BLOCK]
            if self.saving[block[0]] < best - self.tolerance:
                break
            self.refresh(block)
            best = max(best, float(self.saving[block].max()))

    def pick(self) -> int:
        """Pick the best of the fresh rows, and return it."""
        fresh = np.flatnonzero(self.fresh & ~self.taken)
        best = fresh[self.saving[fresh] >= self.saving[fresh].max() - self.tolerance]
        row = int(best[np.argmin(self.rank[best])])
        self.taken[row] = True
        self.fresh[:] = False
        np.minimum(self.reach, self.distance[row], out=self.reach)
        return row
