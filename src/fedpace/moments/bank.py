"""Where the moments of all clients are kept, one row a client.

Rows are clients of the Session's roster. A row without a moment is unknown: it neither enters A nor has a
heterogeneity.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from fedpace.core.checks import BoolArray, FloatArray, IntArray, float_array, frozen
from fedpace.core.checks import shares as checked_shares
from fedpace.core.errors import InputError
from fedpace.numerics.heterogeneity import pairwise_heterogeneity


class MomentBank:
    """Factors of the clients' second moments, and the heterogeneity between them, computed once a version."""

    def __init__(self, count: int = 0) -> None:
        self._factors: list[FloatArray | None] = []
        self._width: int | None = None
        self._version = 0
        self._cache: tuple[tuple[int, float, bytes], FloatArray] | None = None
        self.append(count)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._factors)

    @property
    def version(self) -> int:
        """Changes whenever a moment or the roster does."""
        return self._version

    @property
    def width(self) -> int | None:
        """Number of columns of every factor; None before the first."""
        return self._width

    @property
    def known(self) -> BoolArray:
        """(n,) True where the client has reported a moment."""
        return frozen([factor is not None for factor in self._factors], np.bool_)

    def factor(self, row: int) -> FloatArray | None:
        """Return client `row`'s factor, or None if it is unknown."""
        return self._factors[self._row(row)]

    def append(self, count: int) -> None:
        """Add rows for clients that joined."""
        if count < 0:
            raise InputError(f"the number of rows to add must be at least 0, but {count!r} came")
        if count:
            self._factors.extend([None] * count)
            self._version += 1

    def remove(self, rows: IntArray) -> None:
        """Drop the rows of clients that left; later rows move up."""
        gone = {self._row(int(row)) for row in np.asarray(rows).ravel()}
        if gone:
            self._factors = [factor for row, factor in enumerate(self._factors) if row not in gone]
            self._version += 1

    def put(self, row: int, factor: ArrayLike) -> None:
        """Store client `row`'s factor F (r x d) with second moment F'F, replacing the one before."""
        row = self._row(row)
        matrix = float_array(factor, f"the moment of client {row}", ndim=2)
        if matrix.shape[1] == 0:
            raise InputError(f"the moment of client {row} must have at least one column, but shape {matrix.shape} came")
        if self._width is not None and matrix.shape[1] != self._width:
            raise InputError(
                f"the moment of client {row} must have {self._width} columns, as those of the other clients, "
                f"but it has {matrix.shape[1]}"
            )
        before = self._factors[row]
        if before is not None and np.array_equal(before, matrix):
            return
        self._width = matrix.shape[1]
        self._factors[row] = frozen(matrix)
        self._version += 1

    def heterogeneity(self, *, ridge: float, shares: ArrayLike | None = None) -> FloatArray:
        """(n, n) B_ij = ||(A_i - A_j)(A + ridge tr(A)/d I)^-1||_2; NaN in rows and columns of unknown clients.

        A is the mean moment of the known clients, weighted by their `shares` scaled to sum to 1. The array is
        read-only, and the same one until a moment, the roster, the ridge or the shares change.
        """
        weights = checked_shares(shares, len(self)) if len(self) else np.zeros(0)
        key = (self._version, float(ridge), weights.tobytes())
        if self._cache is None or self._cache[0] != key:
            result = np.full((len(self), len(self)), np.nan)
            rows = np.flatnonzero(self.known)
            if rows.size:
                factors = [factor for factor in self._factors if factor is not None]
                result[np.ix_(rows, rows)] = pairwise_heterogeneity(factors, shares=weights[rows], ridge=ridge)
            result.setflags(write=False)
            self._cache = (key, result)
        return self._cache[1]

    def arrays(self) -> dict[str, FloatArray]:
        """Return all that is needed to restore the bank: plain arrays, fit for an npz file."""
        known = [factor for factor in self._factors if factor is not None]
        stacked = np.vstack(known) if known else np.zeros((0, self._width or 0))
        ranks = [-1 if factor is None else len(factor) for factor in self._factors]
        return {"ranks": np.array(ranks, dtype=np.float64), "factors": stacked}

    def load(self, arrays: Mapping[str, FloatArray]) -> None:
        """Take over what `arrays` gave."""
        missing = {"ranks", "factors"} - set(arrays)
        if missing:
            raise InputError(f"a saved moment bank holds 'ranks' and 'factors', but {sorted(missing)} is missing")
        ranks = float_array(arrays["ranks"], "saved ranks").astype(np.int64)
        stacked = float_array(arrays["factors"], "saved factors", ndim=2)
        ends = np.cumsum(ranks.clip(min=0))
        total = int(ends[-1]) if ends.size else 0
        if total != len(stacked):
            raise InputError(f"saved ranks add up to {total}, but {len(stacked)} rows of factors came")
        self._factors = [
            None if rank < 0 else frozen(stacked[end - rank : end]) for rank, end in zip(ranks, ends, strict=True)
        ]
        self._width = stacked.shape[1] or None
        self._version += 1
        self._cache = None

    def _row(self, row: int) -> int:
        if not 0 <= row < len(self._factors):
            raise InputError(f"expected a row from 0 to {len(self._factors) - 1}, but {row!r} came")
        return int(row)
