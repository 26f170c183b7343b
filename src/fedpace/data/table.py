"""`table`: the rows of a CSV or parquet file, with one column that names the client of each row.

    data = { name = "table", path = "visits.csv", client = "clinic", target = "returned" }

Columns of numbers are standardised with the mean and deviation of the training rows. Columns of words become one 0/1
column per word, except the first. A target of words is a class. A target of numbers is predicted by regression, and the
loss is 1 - R^2: 1 for always predicting the mean, 0 for a perfect prediction. A target with few different whole numbers
could be either, so `task` must say which. A random share of every client's rows, drawn for each seed, is held out for
the test, unless a column `split` selects the test rows.

Errors name the file, the column and the row. Rows of a CSV are numbered as in an editor: the header is line 1. Rows of
a parquet file are numbered from 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import BoolArray, FloatArray, IntArray, check_commas, did_you_mean
from fedpace._base.errors import InputError, MissingExtraError
from fedpace._base.options import AtLeast, Between, Options
from fedpace._base.rng import stream
from fedpace.data.federated import FederatedData, Metric, Samples

NUMERIC_SHARE = 0.9
"""If at least this share of a column is numbers, words in it are treated as mistakes."""


@dataclass(frozen=True, eq=False)
class TableColumn:
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
        self._known: dict[str, TableColumn] = {}
        self.names: tuple[str, ...] = tuple(str(name).strip() for name in table.column_names)
        if len(set(self.names)) < len(self.names):
            twice = sorted({name for name in self.names if self.names.count(name) > 1})
            raise InputError(f"{path}: two columns are called {twice[0]!r}: rename one")
        self.rows: int = table.num_rows
        if not self.rows:
            raise InputError(f"{path}: expected at least one row, but there is none")

    def __getitem__(self, name: str) -> TableColumn:
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

    def named(self, name: str) -> TableColumn:
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


def _column(array: Any, where: str, first: int) -> TableColumn:
    types = import_module("pyarrow.types")
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return _numbers(array, where, first, flags=types.is_boolean(kind))
    if types.is_string(kind) or types.is_large_string(kind):
        return _words(array, where, first)
    if types.is_null(kind):
        return TableColumn(where, first, None, (), np.full(len(array), -1))
    times = types.is_temporal(kind)
    hint = "; as a number of days or seconds it could be used" if times else ""
    raise InputError(
        f"{where}: expected numbers or words, but {'dates or times' if times else kind} came: name it in `leave_out`"
        f"{hint}"
    )


def _numbers(array: Any, where: str, first: int, *, flags: bool = False) -> TableColumn:
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
    return TableColumn(where, first, values, words, placed, flags)


def _words(array: Any, where: str, first: int) -> TableColumn:
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
    if strange > 0 and (share >= NUMERIC_SHARE or (strange == 1 and counts.sum() > 3)):
        place = int(np.flatnonzero(~empty)[np.argmax(~numeric[codes])])
        percent = math.floor(100 * share)  # rounded down, so that it is never 100
        stray = (
            f"{where}, row {first + place}: expected a number as in {percent}% of the column, but {cells[place]!r} "
            "came: mend the cell or leave it empty; if these are names, list the column under `categories`"
        )
        return TableColumn(where, first, None, tuple(distinct.tolist()), placed, stray=stray)
    if distinct.size and numeric.all():  # numbers stored as text, in a parquet file or in quotes
        values = np.full(cells.size, np.nan)
        values[~empty] = distinct.astype(np.float64)[codes]
        return TableColumn(where, first, values, tuple(distinct.tolist()), placed)
    return TableColumn(where, first, None, tuple(distinct.tolist()), placed)


def _is_number(word: str) -> bool:
    try:
        return bool(np.isfinite(float(word)))
    except ValueError:
        return False


MAX_AMBIGUOUS_CLASSES = 20
"""A target with at most this many different whole numbers could also be a class."""

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Table(Options):
    """The rows of a CSV or parquet file, each client's own.

    Args:
        path: the file, relative to the current folder or to the experiment's file.
        client: column with the client of each row.
        target: column to predict.
        features: columns to predict it from; empty = all others.
        leave_out: columns that are not used.
        categories: numeric columns to treat as categories, such as a postcode; columns of words need not be listed.
        task: `classification`, `regression`, or `auto`: words are classes, numbers are not.
        missing: what to do with empty cells: `refuse` the file, `drop` the rows, or `fill` numbers with the mean and
            treat empty words as a category.
        clients: number of clients, drawn from those with enough rows; 0 = all.
        min_samples: least rows of a client that takes part.
        test_fraction: share of every client's rows that is held out.
        split: column with `train` or `test` for each row; empty = test rows are drawn at random.
        max_categories: largest number of different words in a column, and of classes.
    """

    name: ClassVar[str] = "table"

    path: str
    client: str
    target: str
    features: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    task: Literal["auto", "classification", "regression"] = "auto"
    missing: Literal["refuse", "drop", "fill"] = "refuse"
    clients: Annotated[int, AtLeast(0)] = 0
    min_samples: Annotated[int, AtLeast(2)] = 5
    test_fraction: Annotated[float, Between(0, 1, "()")] = 0.2
    split: str = ""
    max_categories: Annotated[int, AtLeast(2)] = 100

    def __post_init__(self) -> None:
        """Raise if an option is invalid."""
        super().__post_init__()
        # An absolute path, so that a run can be resumed or reported from another folder.
        object.__setattr__(self, "path", str(Path(self.path).expanduser().absolute()))
        object.__setattr__(self, "features", tuple(self.features))
        object.__setattr__(self, "leave_out", tuple(self.leave_out))
        object.__setattr__(self, "categories", tuple(self.categories))
        for column in (self.client, self.target, self.split):
            if column and column in self.features:
                raise InputError(
                    f"features of table may not name the column {column!r}, which has another part to play"
                )
            if column and column in self.leave_out:
                raise InputError(f"leave_out of table may not name the column {column!r}, which is needed")
        if self.features and self.leave_out:
            raise InputError("features of table names the columns to use, and leave_out those not to: give one of them")
        if stray := set(self.categories) & {self.client, self.target, self.split}:
            raise InputError(f"categories of table are features, but {sorted(stray)[0]!r} is none")

    @property
    def metric(self) -> Metric:
        """Metric of the runs; it depends on the target column, so this reads the file."""
        return "accuracy" if self.classifies(read_columns(self.path)) else "loss"

    def build(self, *, seed: int) -> FederatedData:
        """Return the data of `seed`, which draws the clients and the test rows."""
        return self.build_from(read_columns(self.path), seed)

    def build_from(self, columns: Columns, seed: int) -> FederatedData:
        """Return the data of `seed` from columns that are already read."""
        classifies = self.classifies(columns)
        features = {
            name: columns.named(name) if name in self.categories else columns[name] for name in self._features(columns)
        }
        complete = self._complete(columns, features)
        owners = self._owners(columns, complete, seed)
        held = [self._hold_out(columns, rows, number, seed) for number, rows in owners]
        trains, tests = [train for train, _ in held], [test for _, test in held]
        training = np.concatenate(trains)
        inputs = np.concatenate([self._encoded(column, name, training) for name, column in features.items()], axis=1)
        target = columns.named(self.target)
        if not classifies:
            assert target.values is not None
            targets: NDArray[np.float32] | Rows = _standardised(target.values, training)
        else:
            targets = target.codes
        tested = np.concatenate(tests)
        return FederatedData(
            name=Path(self.path).stem,
            train=tuple(Samples(inputs[rows], targets[rows]) for rows in trains),
            test=Samples(inputs[tested], targets[tested]),
            classes=len(target.words) if classifies else None,
            metric="accuracy" if classifies else "loss",
            # The plain loss is half the squared error, so always predicting the mean gives half the variance.
            loss_scale=1.0 if classifies else 2.0,
            test_sizes=tuple(len(rows) for rows in tests),
            names=tuple(columns.named(self.client).words[number] for number, _ in owners),
        )

    def classifies(self, columns: Columns) -> bool:
        """Return whether the target is a class."""
        target = columns.named(self.target) if self.task == "classification" else columns[self.target]
        distinct = len(target.words)
        if distinct < 2:
            raise InputError(f"{target.where}: expected a target with at least two values, but {distinct} came")
        if self.task == "regression" and (target.values is None or target.flags):
            raise InputError(
                f"{target.where}: regression needs a target of numbers, but words such as {target.words[0]!r} came"
            )
        if self.task == "classification" and distinct > max(self.max_categories, 2):
            raise InputError(
                f"{target.where}: {distinct} different values are more classes than max_categories = "
                f'{self.max_categories}; for a number to predict, say task = "regression"'
            )
        if self.task != "auto":
            return self.task == "classification"
        if target.values is not None and not target.flags and target.whole and distinct <= MAX_AMBIGUOUS_CLASSES:
            shown = ", ".join(target.words[:5]) + (", ..." if distinct > 5 else "")
            raise InputError(
                f"{target.where}: the whole numbers {shown} could be classes or amounts: add task = "
                '"classification" or task = "regression" to the options of the data'
            )
        return target.values is None or target.flags

    def _features(self, columns: Columns) -> tuple[str, ...]:
        unused = {self.client, self.target, self.split, *self.leave_out}
        others = tuple(name for name in columns.names if name not in unused)
        for name in (self.client, *self.leave_out):
            columns.check(name)  # report a misspelt name first
        chosen = self.features or others
        if not chosen:
            raise InputError(
                f"{self.path} has no columns besides the client's and the target's: nothing to predict from"
            )
        for name in self.categories:
            if name not in chosen:
                raise InputError(
                    f"categories of table names {name!r}, which is not among the features {', '.join(chosen)}"
                )
        return chosen

    def _complete(self, columns: Columns, features: dict[str, TableColumn]) -> NDArray[np.bool_]:
        """Return a mask of the usable rows; rows without a client or a target are never usable."""
        needed = [columns.named(name) for name in (self.client, self.target, self.split) if name]
        asked = [*needed, *features.values()] if self.missing != "fill" else needed
        empty = np.zeros(columns.rows, dtype=np.bool_)
        for column in asked:
            if self.missing == "refuse" and column.empty.any():
                where, count = column.row(int(np.argmax(column.empty))), int(column.empty.sum())
                raise InputError(
                    f"{where}: the cell is empty, {count} of the {columns.rows} in this column: "
                    'say missing = "drop" to leave such rows out, or "fill"'
                )
            empty |= column.empty
        if empty.all():
            raise InputError(
                f'{self.path}: every row has an empty cell: say missing = "fill", or choose other features'
            )
        return ~empty

    def _owners(self, columns: Columns, complete: NDArray[np.bool_], seed: int) -> list[tuple[int, Rows]]:
        """Return the clients that take part, in the order of their names, each with its rows."""
        owner = np.where(complete, columns.named(self.client).codes, -1)
        counts = np.bincount(owner[complete], minlength=len(columns.named(self.client).words))
        eligible = np.flatnonzero(counts >= self.min_samples)
        wanted = self.clients or len(eligible)
        if not len(eligible) or wanted > len(eligible):
            raise InputError(
                f"{self.path}: {wanted or 'some'} clients were asked for, but {len(eligible)} of the {len(counts)} in "
                f"column {self.client!r} have min_samples = {self.min_samples} rows or more: lower one of the two"
            )
        chosen = np.sort(stream(seed, "data", self.name, "owners").choice(eligible, wanted, replace=False))
        order = np.argsort(owner, kind="stable")
        starts = np.searchsorted(owner[order], np.arange(len(counts) + 1))
        return [(int(one), order[starts[one] : starts[one + 1]]) for one in chosen]

    def _hold_out(self, columns: Columns, rows: Rows, owner: int, seed: int) -> tuple[Rows, Rows]:
        if not self.split:
            shuffled = stream(seed, "data", self.name, "test", owner).permutation(rows)
            held = min(max(1, round(self.test_fraction * rows.size)), rows.size - 1)
            return np.sort(shuffled[held:]), np.sort(shuffled[:held])
        column = columns.named(self.split)
        if not {word.lower() for word in column.words} <= {"train", "test"}:
            raise InputError(f"{column.where}: a split says train or test, but {', '.join(column.words[:5])} came")
        tested = np.array([word.lower() == "test" for word in column.words])[column.codes[rows]]
        if tested.all():
            name = columns.named(self.client).words[owner]
            raise InputError(f"{self.path}: client {name!r} has rows to test on, but none to train on: leave it out")
        return rows[~tested], rows[tested]

    def _encoded(self, column: TableColumn, name: str, training: Rows) -> NDArray[np.float32]:
        if column.values is not None and name not in self.categories:
            return _standardised(column.values, training)[:, None]
        if len(column.words) > self.max_categories:
            raise InputError(
                f"{column.where}: {len(column.words)} different words are more than max_categories = "
                f"{self.max_categories}: name it in `leave_out`, or raise max_categories"
            )
        # Without empty cells the first column is redundant. With them, an empty cell is a row of zeros.
        first = 1 if len(column.words) and not column.empty.any() else 0
        said: NDArray[np.float32] = (column.codes[:, None] == np.arange(first, len(column.words))).astype(np.float32)
        return said


def _standardised(values: NDArray[np.float64], training: Rows) -> NDArray[np.float32]:
    """Scale values to mean 0 and deviation 1 over the training rows; empty cells become the mean."""
    known = values[training]
    known = known[~np.isnan(known)]
    mean, deviation = (known.mean(), known.std()) if known.size else (0.0, 0.0)
    scaled = (values - mean) / (deviation if deviation > 0 else 1.0)
    return np.nan_to_num(scaled, nan=0.0).astype(np.float32)
