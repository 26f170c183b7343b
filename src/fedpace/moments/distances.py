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
    """B of all rows under a given A; NaN where a row has no factor."""

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
        self._matrix = np.full((len(factors), len(factors)), np.nan)
        self._stale = {row for row, known in enumerate(self._known) if known}
        self.pairs_computed = 0

    def append(self, count: int) -> None:
        """Add rows without a factor."""
        size = len(self._known) + count
        matrix = np.full((size, size), np.nan)
        matrix[: len(self._known), : len(self._known)] = self._matrix
        self._matrix = matrix
        self._known.extend([False] * count)
        self._whitened.factors.extend([self._nothing] * count)

    def keep(self, rows: IntArray) -> None:
        """Drop all rows but these."""
        self._matrix = self._matrix[np.ix_(rows, rows)]
        self._stale = {place for place, row in enumerate(rows.tolist()) if row in self._stale}
        self._known = [self._known[row] for row in rows]
        self._whitened.keep(rows)

    def put(self, row: int, factor: FloatArray) -> None:
        """Replace a row's factor."""
        self._known[row] = True
        self._whitened.replace(row, factor)
        self._stale.add(row)

    def matrix(self) -> FloatArray:
        """Return B, read-only, after computing the pairs of rows that changed."""
        if self._stale:
            stale = np.array(sorted(self._stale))
            known = np.flatnonzero(self._known)
            old = np.setdiff1d(known, stale)
            left, right = np.triu_indices(len(stale), 1)
            first = np.concatenate([np.repeat(stale, len(old)), stale[left]])
            second = np.concatenate([np.tile(old, len(stale)), stale[right]])
            matrix = self._matrix.copy()
            matrix[first, second] = matrix[second, first] = self._whitened.norms(first, second, tol=self._tol)
            matrix[stale, stale] = 0.0
            self.pairs_computed += len(first)
            self._matrix, self._stale = matrix, set()
        self._matrix.setflags(write=False)
        return self._matrix
