"""Reads the columns of a CSV or parquet file as numbers or words; errors name the file, the column and the row.

Rows of a CSV are numbered as in an editor: the header is line 1. Rows of a parquet file are numbered from 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import BoolArray, FloatArray, IntArray, check_commas, did_you_mean
from fedpace._base.errors import InputError, MissingExtraError

MOSTLY = 0.9
"""If at least this share of a column is numbers, words in it are treated as mistakes."""


@dataclass(frozen=True, eq=False)
class Column:
    """One column of numbers or words, some of which may be empty."""

    where: str
    """The file and the column, for errors."""
    first: int
    """Number of the first row in the file."""
    values: FloatArray | None
    """(rows,) numbers, NaN for empty cells; None for a column of words."""
    words: tuple[str, ...]
    """The distinct words, sorted; for numbers too, so that they can be used as names."""
    codes: IntArray
    """(rows,) index of each cell's word in `words`, -1 for empty cells."""
    flags: bool = False
    """Whether the column holds true and false."""
    stray: str | None = None
    """Error message if the column has words among numbers; otherwise None."""

    @property
    def empty(self) -> BoolArray:
        """(rows,) True for empty cells."""
        return np.asarray(self.codes < 0)

    def row(self, place: int) -> str:
        """Return the file, column and row of a cell, for an error message."""
        return f"{self.where}, row {self.first + place}"

    @property
    def whole(self) -> bool:
        """Whether all numbers are integers."""
        return self.values is not None and bool((np.mod(self.values[~self.empty], 1) == 0).all())


class Columns:
    """The columns of a file, each parsed at first use."""

    def __init__(self, path: Path, table: Any, first: int) -> None:
        self.path = path
        self._table, self._first = table, first
        self._known: dict[str, Column] = {}
        self.names: tuple[str, ...] = tuple(str(name).strip() for name in table.column_names)
        if len(set(self.names)) < len(self.names):
            twice = sorted({name for name in self.names if self.names.count(name) > 1})
            raise InputError(f"{path}: two columns are called {twice[0]!r}: rename one")
        self.rows: int = table.num_rows
        if not self.rows:
            raise InputError(f"{path}: expected at least one row, but there is none")

    def __getitem__(self, name: str) -> Column:
        """Return a column by its name; raise if it has words among numbers."""
        column = self.named(name)
        if column.stray is not None:
            raise InputError(column.stray)
        return column

    def check(self, name: str) -> None:
        """Raise if there is no column with this name."""
        if name not in self.names:
            known = f"{did_you_mean(name, self.names)} It has {', '.join(self.names)}"
            raise InputError(f"{self.path} has no column {name!r}.{known}")

    def named(self, name: str) -> Column:
        """Return a column whose cells are used as names; it may mix numbers and words."""
        if name not in self._known:
            self.check(name)
            array = self._table.column(self.names.index(name)).combine_chunks()
            self._known[name] = _column(array, f"{self.path}, column {name!r}", self._first)
        return self._known[name]


def read_columns(path: str) -> Columns:
    """Read a file; the result is cached until the file changes."""
    place = Path(path)
    if not place.is_file():
        raise InputError(f"{path}: there is no such file; give the path of a CSV or parquet file")
    found = place.stat()
    return _read(place, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=4)
def _read(path: Path, changed: int, size: int) -> Columns:
    try:
        pyarrow = import_module("pyarrow")
        csv, parquet = import_module("pyarrow.csv"), import_module("pyarrow.parquet")
    except ModuleNotFoundError as cause:
        raise MissingExtraError(f"reading {path.name}", "data", "pyarrow") from cause
    kind = "parquet" if path.suffix.lower() in (".parquet", ".pq") else "CSV"
    try:
        if kind == "parquet":
            return Columns(path, parquet.read_table(path), first=1)
        nulls = csv.ConvertOptions(
            strings_can_be_null=True, null_values=["", "NA", "N/A", "NaN", "nan", "null", "NULL"]
        )
        table = csv.read_csv(path, convert_options=nulls)
        check_commas(table.column_names, str(path))
        return Columns(path, table, first=2)
    except (pyarrow.ArrowException, OSError) as cause:
        reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
        raise InputError(f"{path}: expected a {kind} file with a header, but it cannot be read: {reason}") from cause


def _column(array: Any, where: str, first: int) -> Column:
    types = import_module("pyarrow.types")
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return _numbers(array, where, first, flags=types.is_boolean(kind))
    if types.is_string(kind) or types.is_large_string(kind):
        return _words(array, where, first)
    if types.is_null(kind):
        return Column(where, first, None, (), np.full(len(array), -1))
    times = types.is_temporal(kind)
    hint = "; as a number of days or seconds it could be used" if times else ""
    raise InputError(
        f"{where}: expected numbers or words, but {'dates or times' if times else kind} came: name it in `leave_out`"
        f"{hint}"
    )


def _numbers(array: Any, where: str, first: int, *, flags: bool = False) -> Column:
    plain = array.cast(import_module("pyarrow").float64()) if not flags else array.cast("int8").cast("float64")
    values = plain.to_numpy(zero_copy_only=False).astype(np.float64)
    if (endless := np.isinf(values)).any():
        raise InputError(f"{where}, row {first + int(np.argmax(endless))}: expected a finite number, but infinity came")
    empty = np.isnan(values)
    distinct, codes = np.unique(values[~empty], return_inverse=True)
    placed = np.full(values.size, -1, dtype=np.int64)
    placed[~empty] = codes
    named = ("false", "true") if flags else ()
    words = tuple(named[int(value)] if flags else f"{value:.15g}" for value in distinct)
    return Column(where, first, values, words, placed, flags)


def _words(array: Any, where: str, first: int) -> Column:
    cells: NDArray[Any] = np.array(
        [None if cell is None else cell.strip() or None for cell in array.to_pylist()], object
    )
    empty = np.array([cell is None for cell in cells])
    distinct, codes = np.unique(cells[~empty].astype(np.str_), return_inverse=True)
    placed = np.full(cells.size, -1, dtype=np.int64)
    placed[~empty] = codes
    counts = np.bincount(codes, minlength=distinct.size)
    numeric = np.array([_is_number(word) for word in distinct], dtype=np.bool_)
    share = counts[numeric].sum() / max(1, counts.sum())
    strange = int(counts[~numeric].sum())
    if strange > 0 and (share >= MOSTLY or (strange == 1 and counts.sum() > 3)):
        place = int(np.flatnonzero(~empty)[np.argmax(~numeric[codes])])
        percent = math.floor(100 * share)  # rounded down, so that it is never 100
        stray = (
            f"{where}, row {first + place}: expected a number as in {percent}% of the column, but {cells[place]!r} "
            "came: mend the cell or leave it empty; if these are names, list the column under `categories`"
        )
        return Column(where, first, None, tuple(distinct.tolist()), placed, stray=stray)
    if distinct.size and numeric.all():  # numbers stored as text, in a parquet file or in quotes
        values = np.full(cells.size, np.nan)
        values[~empty] = distinct.astype(np.float64)[codes]
        return Column(where, first, values, tuple(distinct.tolist()), placed)
    return Column(where, first, None, tuple(distinct.tolist()), placed)


def _is_number(word: str) -> bool:
    try:
        return bool(np.isfinite(float(word)))
    except ValueError:
        return False
