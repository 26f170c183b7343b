"""`RowStore`: how a server rule stores one vector per client, in how many bits, and in memory or in mapped files.

    store = RowStore.choose("auto", length, clients, gib=1.0)
    row = store.keep(vector)                 # an array to put into a `Stack`
    store.values(row)                        # the vector

A row is a float32 array, or bytes (`fedpace.numerics.quantised`). References, one per model version that clients train
from, are stored in 16 bits if rows are stored in fewer than 32: an error in a reference is an error of all rows made
from it.

With a folder, every row is a mapped file of its own. The file has no name: the system removes it when the row is
dropped, also after a crash. The system writes pages to disk when memory is short.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import FloatArray
from fedpace._base.errors import InputError
from fedpace.numerics import quantised
from fedpace.numerics.parts import in_parts

Precision = Literal["auto", "float32", "16bit", "8bit", "4bit"]
"""How rows are stored. `auto`: in the most bits in which every client has room, else in 4."""
BITS: dict[str, int] = {"float32": 32, "16bit": 16, "8bit": 8, "4bit": 4}
GIB = 2**30
FEWEST = 2
"""Rows that are always kept: one client shows no difference."""

Row = NDArray[Any]
"""A stored vector: float32 values, or bytes. In the step that brings it also the vector itself, in double precision."""


@dataclass(frozen=True)
class RowStore:
    """Rows of `length` values in `bits` bits each.

    Args:
        length: values per row.
        bits: bits per value of rows: 32, 16, 8 or 4.
        room: most rows.
        folder: folder of the mapped files; None = rows are in memory.
        single: compute in single precision, not in double.
    """

    length: int
    bits: int = 32
    room: int = 2**62
    folder: Path | None = None
    single: bool = False

    @classmethod
    def choose(
        cls,
        precision: Precision,
        length: int,
        clients: int,
        *,
        gib: float,
        folder: str = "",
        before: int = 32,
        single: bool = False,
    ) -> RowStore:
        """Return the store for a model with `length` parameters.

        Args:
            precision: the option of the rule.
            length: values per row.
            clients: number of clients to remember.
            gib: memory for rows.
            folder: folder of the mapped files; empty = rows are in memory.
            before: bits of the rows so far. `auto` does not go back to more bits, which could change to and fro.
            single: compute in single precision, not in double.
        """
        assert precision in get_args(Precision)
        budget = int(gib * GIB)
        if precision == "auto":
            allowed = [each for each in BITS.values() if each <= before]
            fewest = min(allowed, key=lambda each: bytes_of(length, each))  # blocks make short rows longer
            bits = next((each for each in allowed if clients * bytes_of(length, each) <= budget), fewest)
        else:
            bits = BITS[precision]
        return cls(length, bits, max(FEWEST, budget // bytes_of(length, bits)), _folder(folder), single)

    def described(self) -> str:
        """Return in words how rows are stored and what they take."""
        kind = "single precision" if self.bits == 32 else f"{self.bits} bits"
        size = bytes_of(self.length, self.bits)
        each, most = size / 2**20, self.room * size / GIB
        where = "in memory" if self.folder is None else f"in mapped files in {self.folder}"
        return (
            f"in {kind} per value, {each:,.3g} MiB per client, {where}; up to {self.room:,} clients in {most:,.3g} GiB"
        )

    @property
    def reference_bits(self) -> int:
        """Bits per value of references."""
        return 32 if self.bits == 32 else 16

    def keep(self, vector: Row, bits: int | None = None) -> Row:
        """Return a vector as a row; a row that is already stored in these bits is returned as it is.

        Args:
            vector: the values, or a row.
            bits: bits per value; None = those of rows.
        """
        bits = self.bits if bits is None else bits
        if _bits_of(vector, self.length) == bits:
            return vector if self.folder is None or _is_mapped(vector) else self._mapped(vector)
        row = self.blank(bits)

        def put(part: slice) -> None:
            self.put(row, self.values(vector, part), part.start)

        in_parts(put, self.length)
        return row

    def blank(self, bits: int | None = None) -> Row:
        """Return a row without values, to be filled with `put`."""
        bits = self.bits if bits is None else bits
        kind = np.float32 if bits == 32 else np.uint8
        size = self.length if bits == 32 else quantised.row_bytes(self.length, bits)
        return np.empty(size, kind) if self.folder is None else _file(self.folder, size, kind)

    def fills(self, row: Row, bits: int | None = None) -> bool:
        """Return whether a stored row is one that `blank` could have returned, to be written over."""
        bits = self.bits if bits is None else bits
        return row.flags.writeable and _bits_of(row, self.length) == bits and (self.folder is None or _is_mapped(row))

    def put(self, row: Row, values: FloatArray, start: int = 0) -> FloatArray:
        """Store `values` as the entries of a row from `start` on, and return them as they were stored."""
        if row.dtype == np.uint8:
            return self._as_kind(quantised.put(row, values, self.length, start))
        row[start : start + values.size] = values
        return self._as_kind(row[start : start + values.size])

    def values(self, row: Row, part: slice = slice(None)) -> FloatArray:
        """Return a part of a row, in double precision unless `single`."""
        if row.dtype == np.uint8:
            start, stop, _ = part.indices(self.length)
            return self._as_kind(quantised.restored(row, self.length, start, stop))
        return self._as_kind(row[part])

    def _as_kind(self, values: Row) -> FloatArray:
        return values.astype(np.float32 if self.single else np.float64, copy=False)

    def _mapped(self, row: Row) -> Row:
        assert self.folder is not None
        copy = _file(self.folder, row.size, row.dtype)
        copy[:] = row
        return copy


def bytes_of(length: int, bits: int) -> int:
    """Return the bytes of a row of `length` values."""
    return 4 * length if bits == 32 else quantised.row_bytes(length, bits)


def _bits_of(row: Row, length: int) -> int:
    """Return the bits per value of a row; 64 for values in double precision."""
    return quantised.bits_of(row, length) if row.dtype == np.uint8 else 8 * row.dtype.itemsize


def _folder(name: str) -> Path | None:
    if not name:
        return None
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise InputError(f"memory_folder must be a folder that can be written, but {name} is none: {cause}") from cause
    return folder


def _file(folder: Path, size: int, kind: Any) -> Row:
    """Return an array in a mapped file without a name."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(max(1, size) * np.dtype(kind).itemsize)
            return np.memmap(file, dtype=kind, mode="r+", shape=(size,))
    except OSError as cause:
        raise InputError(
            f"the folder for remembered clients, {folder}, cannot take another {size * np.dtype(kind).itemsize:,} "
            f"bytes ({cause}): make room there, or lower memory_gib"
        ) from cause


def _is_mapped(row: Row) -> bool:
    base: Any = row
    while base is not None:
        if isinstance(base, np.memmap):
            return True
        base = getattr(base, "base", None)
    return False
