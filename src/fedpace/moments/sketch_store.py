"""SketchStore: rows of client sketches, with the known rows, the changes and the cluster of each row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace._base.checks import BoolArray, IntArray, at_least, frozen
from fedpace._base.errors import InputError


class SketchStore:
    """An array of sketches that clients can join and leave; `version` grows with every change."""

    def __init__(self, count: int, dimension: int) -> None:
        self.dimension = dimension
        self.version = 0
        self._sketches: NDArray[Any] = np.zeros((0, dimension), dtype=np.float32)
        self._known: BoolArray = np.zeros(0, dtype=np.bool_)
        self._labels: IntArray = np.zeros(0, dtype=np.int64)  # cluster of each row, -1 = none yet
        self._changed = 0  # sketches that changed since the clusters were made
        self.append(count)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._known)

    @property
    def known(self) -> BoolArray:
        """(n,) True for clients with a moment."""
        return frozen(self._known, np.bool_)

    def append(self, count: int) -> None:
        """Add rows for clients that joined."""
        at_least(count, 0, "the number of rows to add")
        if count:
            self._sketches = np.vstack([self._sketches, np.zeros((count, self.dimension), dtype=np.float32)])
            self._known = np.append(self._known, np.zeros(count, dtype=np.bool_))
            self._labels = np.append(self._labels, np.full(count, -1, dtype=np.int64))
            self.version += 1

    def put_sketches(self, rows: ArrayLike, sketches: ArrayLike) -> None:
        """Store sketches that were computed elsewhere; all must come from the same `Sketcher`."""
        places = np.asarray(rows, dtype=np.int64)
        values = np.asarray(sketches, dtype=np.float32)
        if values.shape != (places.size, self.dimension):
            raise InputError(f"expected {places.size} sketches of {self.dimension} numbers, but {values.shape} came")
        if not np.isfinite(values).all():
            bad = int(places[np.flatnonzero(~np.isfinite(values).all(axis=1))[0]])
            raise InputError(f"sketches must be finite, but that of client {bad} is not")
        if places.size and not (places.min() >= 0 and places.max() < len(self)):
            raise InputError(f"expected rows from 0 to {len(self) - 1}, but {places.min()} to {places.max()} came")
        fresh = ~self._known[places] | (self._sketches[places] != values).any(axis=1)
        if fresh.any():
            self._sketches[places], self._known[places] = values, True
            self._labels[places[fresh]] = -1
            self._changed += int(fresh.sum())
            self.version += 1

    def _drop(self, rows: IntArray) -> IntArray:
        """Remove rows, and return them sorted."""
        gone = np.unique([self._row(int(row)) for row in np.asarray(rows).ravel()]).astype(np.int64)
        if gone.size:
            self._sketches = np.delete(self._sketches, gone, axis=0)
            self._known, self._labels = np.delete(self._known, gone), np.delete(self._labels, gone)
            self.version += 1
        return gone

    def _row(self, row: int) -> int:
        if not 0 <= row < len(self):
            raise InputError(f"expected a row from 0 to {len(self) - 1}, but {row!r} came")
        return int(row)
