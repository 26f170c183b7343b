"""Strict reader for tables in CSV or parquet files; errors name the file, the row and the column.

Row numbers are those that an editor shows: the header of a CSV is line 1. Rows of a parquet file count from 1.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fedpace._base.checks import BoolArray, FloatArray, IntArray, check_commas
from fedpace._base.errors import InputError, MissingExtraError

_YES, _NO = {"1", "true", "yes"}, {"0", "false", "no"}


@dataclass(frozen=True, eq=False)
class TableFile:
    """Columns of a file, with the cells as they are in the file."""

    path: Path
    columns: dict[str, list[Any]]
    first: int
    """Number of the first row, as errors count rows."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(next(iter(self.columns.values())))

    def __contains__(self, column: str) -> bool:
        """Return whether the column exists."""
        return column in self.columns

    def where(self, row: int, column: str) -> str:
        """Return the location of a cell, for error messages."""
        return f"{self.path}, row {self.first + row}, column {column!r}"

    def numbers(self, column: str, *, low: float = -math.inf, above: bool = False) -> FloatArray:
        """Return a column of finite numbers that are at least `low`, or greater if `above` is True."""
        bound = "" if low == -math.inf else f" {'above' if above else 'of at least'} {low:g}"

        def parse(cell: Any) -> float:
            value = float(cell)
            if not math.isfinite(value) or value < low or (above and value == low):
                raise ValueError
            return value

        return np.array(self._each(column, parse, f"a finite number{bound}"), dtype=np.float64)

    def whole(self, column: str) -> IntArray:
        """Return a column of whole numbers of at least 0."""

        def parse(cell: Any) -> int:
            if isinstance(cell, float) and not cell.is_integer():
                raise ValueError
            value = int(cell)
            if value < 0:
                raise ValueError
            return value

        return np.array(self._each(column, parse, "a whole number of at least 0"), dtype=np.int64)

    def flags(self, column: str) -> BoolArray:
        """Return a column of 1 or 0, true or false, yes or no."""

        def parse(cell: Any) -> bool:
            word = str(cell).strip().lower()
            if word not in _YES | _NO:
                raise ValueError
            return word in _YES

        return np.array(self._each(column, parse, "1 or 0, true or false, yes or no"), dtype=np.bool_)

    def _each(self, column: str, parse: Callable[[Any], Any], expected: str) -> list[Any]:
        parsed = []
        for row, cell in enumerate(self.columns[column]):
            try:
                parsed.append(parse(cell))
            except (TypeError, ValueError, OverflowError):
                raise InputError(f"{self.where(row, column)}: expected {expected}, but {cell!r} came") from None
        return parsed


def read_table(file: str, *, required: Sequence[str] = (), optional: Sequence[str] = ()) -> TableFile:
    """Return the named columns of a CSV file with a header, or of a parquet file; all columns if none is named."""
    path = Path(file)
    if not path.is_file():
        raise InputError(f"{path}: there is no such file; give the path of a CSV or parquet file")
    read = _read_parquet if path.suffix.lower() in (".parquet", ".pq") else _read_csv
    names, columns, first = read(path, [*required, *optional])
    check_commas(names, str(path))
    if not names and not required:
        raise InputError(f"{path}: expected a table with named columns, but there is none")
    missing = [column for column in required if column not in names]
    if missing:
        raise InputError(
            f"{path}: column {', '.join(map(repr, missing))} is missing; the columns are {', '.join(names)}"
        )
    if not next(iter(columns.values())):
        raise InputError(f"{path}: expected at least one row, but there is none")
    return TableFile(path, columns, first)


def _read_csv(path: Path, wanted: Sequence[str]) -> tuple[list[str], dict[str, list[Any]], int]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            names = [name.strip() for name in next(reader, [])]
            places = {name: names.index(name) for name in wanted or names if name in names}
            columns: dict[str, list[Any]] = {name: [] for name in places}
            for number, cells in enumerate(reader, start=2):
                if len(cells) != len(names):
                    raise InputError(f"{path}, row {number}: expected {len(names)} cells, but {len(cells)} came")
                for name, place in places.items():
                    columns[name].append(cells[place].strip())
    except (UnicodeDecodeError, csv.Error) as cause:
        raise InputError(f"{path}: expected a CSV file in UTF-8, but it cannot be read: {cause}") from cause
    return names, columns, 2


def _read_parquet(path: Path, wanted: Sequence[str]) -> tuple[list[str], dict[str, list[Any]], int]:
    try:
        pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as cause:
        raise MissingExtraError(f"reading {path.name}", "data", "pyarrow") from cause
    try:
        table = parquet.read_table(path)
    except (pyarrow.ArrowInvalid, OSError) as cause:
        raise InputError(f"{path}: expected a parquet file, but it cannot be read: {cause}") from cause
    names = list(table.column_names)
    return names, {name: table.column(name).to_pylist() for name in wanted or names if name in names}, 1
