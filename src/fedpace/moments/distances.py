"""Distances: the heterogeneity matrix B under a fixed reference A, updated pair by pair.

If A changes with every new moment, every B_ij changes too. The paper updates "B_ij for participating clients" only,
which is correct if A is frozen (docs/errata.md, C4). With a frozen A, s new moments among m require only s (m - s) + s
(s - 1) / 2 pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace.numerics.inverse import regularised_inverse
from fedpace.numerics.whitened import Whitened


class Distances:
    """B between the rows that have a factor, under a given A. Rows without a factor take no space in the matrix."""

    def __init__(
        self, factors: Sequence[FloatArray | None], reference: FloatArray, *, ridge: float, tol: float
    ) -> None:
        self.reference, self.ridge = reference, ridge
        self._tol = tol
        self._nothing = np.zeros((0, len(reference)))
        self._known = [factor is not None for factor in factors]
        self._whitened = Whitened(
            [self._nothing if factor is None else factor for factor in factors],
            regularised_inverse(reference, ridge=ridge),
        )
        self._rows: IntArray = np.zeros(0, dtype=np.int64)  # bank row of each matrix row
        self._matrix: FloatArray = np.zeros((0, 0))
        self._stale = {row for row, known in enumerate(self._known) if known}
        self.pairs_computed = 0

    def append(self, count: int) -> None:
        """Add rows without a factor."""
        self._known.extend([False] * count)
        self._whitened.factors.extend([self._nothing] * count)

    def keep(self, rows: IntArray) -> None:
        """Drop all rows except `rows`."""
        stay = np.isin(self._rows, rows)
        self._rows = np.searchsorted(rows, self._rows[stay])
        self._matrix = self._matrix[np.ix_(stay, stay)]
        self._stale = {place for place, row in enumerate(rows.tolist()) if row in self._stale}
        self._known = [self._known[row] for row in rows]
        self._whitened.keep(rows)

    def put(self, row: int, factor: FloatArray) -> None:
        """Replace a row's factor."""
        self._known[row] = True
        self._whitened.replace(row, factor)
        self._stale.add(row)

    def matrix(self) -> FloatArray:
        """Return B between the rows with a factor, read-only, after recomputing the pairs of changed rows."""
        if self._stale:
            stale = np.array(sorted(self._stale))
            known = np.flatnonzero(self._known)
            old = np.setdiff1d(known, stale)
            left, right = np.triu_indices(len(stale), 1)
            first = np.concatenate([np.repeat(stale, len(old)), stale[left]])
            second = np.concatenate([np.tile(old, len(stale)), stale[right]])
            matrix = np.zeros((len(known), len(known)))
            before = np.searchsorted(known, self._rows)
            matrix[np.ix_(before, before)] = self._matrix
            one, other = np.searchsorted(known, first), np.searchsorted(known, second)
            matrix[one, other] = matrix[other, one] = self._whitened.norms(first, second, tol=self._tol)
            changed = np.searchsorted(known, stale)
            matrix[changed, changed] = 0.0
            self.pairs_computed += len(first)
            self._rows, self._matrix, self._stale = known, matrix, set()
        self._matrix.setflags(write=False)
        return self._matrix
