"""The matrix B of a bank under one fixed reference A, kept up to date pair by pair.

ERRATA C4: when clients bring new moments, A changes and with it every B_ij. The paper updates "B_ij for participating
clients" only, which is right if A is frozen. Under a frozen A, s new moments among m cost s (m - s) + s (s - 1) / 2
pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace.numerics.inverse import regularised_inverse
from fedpace.numerics.whitened import Whitened


class Distances:
    """B of the rows that have a factor, under a given A. Rows without one take no memory in it."""

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
        self._rows: IntArray = np.zeros(0, dtype=np.int64)  # row of each line of the matrix
        self._matrix: FloatArray = np.zeros((0, 0))
        self._stale = {row for row, known in enumerate(self._known) if known}
        self.pairs_computed = 0

    def append(self, count: int) -> None:
        """Add rows without a factor."""
        self._known.extend([False] * count)
        self._whitened.factors.extend([self._nothing] * count)

    def keep(self, rows: IntArray) -> None:
        """Drop all rows but these."""
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
        """Return B of the rows with a factor, read-only, after computing the pairs of rows that changed."""
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
