"""`centres`: a natural federation in a folder, with one file or sub-folder per centre, as FLamby has it.

    data = { name = "centres", path = "heart", target = "disease" }

A centre is a client. Its name is that of its file or sub-folder:

    heart/basel.csv                                      a table; test rows are drawn, or named by a column `split`
    heart/basel/train.csv, heart/basel/test.csv          a table whose test rows are given
    heart/basel.npz                                      arrays X and y, with or without X_test and y_test
    heart/basel/train.npz, heart/basel/test.npz          arrays X and y each

Tables may be parquet files too. Their columns are treated as those of the data set `table`; words and deviations are
those of all centres together. Arrays keep their shape. Numbers become float32, and bytes (uint8) numbers from 0 to 1.
"""

from __future__ import annotations

import dataclasses
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedpace._base.errors import InputError
from fedpace._base.options import AtLeast, Between, Options
from fedpace._base.rng import stream
from fedpace.data.arrays import Problem, data_from_arrays, is_named, number_names
from fedpace.data.federated import FederatedData, Metric
from fedpace.data.table import Columns, Table, TableColumn, read_columns

TABLES, ARRAYS = (".csv", ".parquet", ".pq"), (".npz",)
CENTRE, SPLIT = "(centre)", "(split)"
"""Columns that say which centre a row came from, and whether it is tested on."""
Pair = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True)
class Centre:
    """The files of one centre."""

    name: str
    train: Path
    test: Path | None
    """File with the test rows; None = part of the other file is held out."""


@dataclass(frozen=True)
class Centres(Options):
    """A natural federation: a folder with a file or folder per centre.

    Args:
        path: the folder, relative to the current folder or to the experiment's file.
        target: column to predict; only for tables.
        features: columns to predict it from; empty = all others.
        leave_out: columns that are not used.
        categories: numeric columns to treat as categories.
        task: `classification`, `regression`, or `auto`: words are classes, and so are whole numbers in arrays.
        missing: what to do with empty cells: `refuse` the file, `drop` the rows, or `fill` them.
        split: column with `train` or `test` for each row, if the centres' files have one.
        test_fraction: share of a centre's rows that is held out, if its test rows are not given.
        max_categories: largest number of different words in a column, and of classes.
    """

    name: ClassVar[str] = "centres"

    path: str
    target: str = ""
    features: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    task: Literal["auto", "classification", "regression"] = "auto"
    missing: Literal["refuse", "drop", "fill"] = "refuse"
    split: str = ""
    test_fraction: Annotated[float, Between(0, 1, "()")] = 0.2
    max_categories: Annotated[int, AtLeast(2)] = 100

    def __post_init__(self) -> None:
        """Raise if an option is invalid."""
        super().__post_init__()
        object.__setattr__(self, "path", str(Path(self.path).expanduser().absolute()))
        for field in ("features", "leave_out", "categories"):
            object.__setattr__(self, field, tuple(getattr(self, field)))

    @property
    def metric(self) -> Metric:
        """Metric of the runs; it depends on the targets, so this reads the files."""
        centres = find_centres(Path(self.path))
        if _is_table(centres):
            return "accuracy" if self._table(centres).classifies(_pooled(centres)) else "loss"
        return "loss" if self._problem([_arrays(centre)[0] for centre in centres]) == "regression" else "accuracy"

    def build(self, *, seed: int) -> FederatedData:
        """Return the data of `seed`, which draws the test rows of centres that do not give them."""
        centres = find_centres(Path(self.path))
        if not _is_table(centres):
            return self._from_arrays(centres, seed)
        pooled = _pooled(centres)
        found = self._table(centres).build_from(pooled, seed)
        return dataclasses.replace(found, name=Path(self.path).name)

    def _table(self, centres: list[Centre]) -> Table:
        """Return the rows of all centres as a table."""
        if not self.target:
            raise InputError(f"target of centres is missing: name the column of {centres[0].train} to predict")
        given = all(centre.test is not None for centre in centres)
        if given and self.split:
            raise InputError(f"split of centres names a column, but {centres[0].test} has the test rows: leave it out")
        return Table(
            path=self.path, client=CENTRE, target=self.target, features=self.features,
            leave_out=self.leave_out, categories=self.categories, task=self.task, missing=self.missing,
            min_samples=2, test_fraction=self.test_fraction, split=SPLIT if given else self.split,
            max_categories=self.max_categories,
        )  # fmt: skip

    def _problem(self, pairs: list[Pair]) -> Problem:
        if self.task != "auto":
            return self.task
        whole = all(is_named(y) or np.issubdtype(y.dtype, np.integer) or y.dtype == np.bool_ for _, y in pairs)
        return "classification" if whole else "regression"

    def _from_arrays(self, centres: list[Centre], seed: int) -> FederatedData:
        for option in ("target", "split"):
            if getattr(self, option):
                raise InputError(f"{option} of centres names a column, but {centres[0].train} has arrays: leave it out")
        held = []
        for centre in centres:
            train, test = _arrays(centre)
            held.append((train, test) if test is not None else self._hold_out(centre, train, seed))
        pairs, tests, _ = number_names([train for train, _ in held], [test for _, test in held])
        tests = tests if isinstance(tests, list) else [tests]
        task = self._problem(pairs)
        targets = [y for _, y in [*pairs, *tests]]
        classes = 1 + max(int(y.max()) for y in targets) if task == "classification" else None
        names = tuple(centre.name for centre in centres)
        try:
            found = data_from_arrays(pairs, tests, task=task, classes=classes, names=names)
        except InputError as cause:
            numbered = ", ".join(f"client {at} is {name}" for at, name in enumerate(names[:8]))
            raise InputError(f"{self.path}: {cause} ({numbered})") from cause
        sizes = tuple(len(y) for _, y in tests)
        return dataclasses.replace(found.build(seed=seed), name=Path(self.path).name, test_sizes=sizes)

    def _hold_out(self, centre: Centre, pair: Pair, seed: int) -> tuple[Pair, Pair]:
        X, y = pair
        if len(X) < 2:
            raise InputError(f"{centre.train} has one sample, so none can be held out for the test: leave it out")
        order = stream(seed, "data", self.name, "test", centre.name).permutation(len(X))
        held = min(max(1, round(self.test_fraction * len(X))), len(X) - 1)
        test, train = np.sort(order[:held]), np.sort(order[held:])
        return (X[train], y[train]), (X[test], y[test])


def find_centres(folder: Path) -> list[Centre]:
    """Return the centres of a folder in the order of their names; raise if there are none, or if they mix layouts."""
    if not folder.is_dir():
        hint = (
            f": for one file use data = {{ name = 'table', path = '{folder.name}', ... }}" if folder.is_file() else ""
        )
        raise InputError(f"{folder}: expected a folder with one file or sub-folder per centre, but it is none{hint}")
    found = []
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith((".", "_")):
            continue
        if entry.is_file() and entry.suffix.lower() in (*TABLES, *ARRAYS):
            found.append(Centre(entry.stem, entry, None))
        elif entry.is_dir():
            parts = {part: _single(entry, part) for part in ("train", "test")}
            if parts["train"] is not None:
                found.append(Centre(entry.name, parts["train"], parts["test"]))
    if not found:
        raise InputError(
            f"{folder}: expected one CSV, parquet or npz file per centre, or sub-folders with train.csv and test.csv "
            "(or parquet, or npz), but there are none"
        )
    names = [centre.name for centre in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"{folder}: two centres are called {twice[0]!r}: rename one")
    first = found[0]
    for centre in found:
        if (centre.test is None) != (first.test is None):
            lacks = centre if centre.test is None else first
            raise InputError(f"{folder}: centre {lacks.name!r} has no test file, but others have: give all or none")
        if _kind(centre) != _kind(first):
            raise InputError(
                f"{folder}: {centre.train.name} and {first.train.name} are of different kinds: convert one"
            )
    return found


def _single(folder: Path, part: str) -> Path | None:
    """Return the file of a centre's sub-folder with this part of its rows."""
    found = sorted(path for path in folder.glob(f"{part}.*") if path.suffix.lower() in (*TABLES, *ARRAYS))
    if len(found) > 1:
        raise InputError(f"{folder}: both {found[0].name} and {found[1].name} are there: keep one")
    return found[0] if found else None


def _kind(centre: Centre) -> str:
    return "arrays" if centre.train.suffix.lower() in ARRAYS else "table"


def _is_table(centres: list[Centre]) -> bool:
    return _kind(centres[0]) == "table"


# -- arrays ----------------------------------------------------------------------------------------------------------


def _arrays(centre: Centre) -> tuple[Pair, Pair | None]:
    """Return what a centre trains on, and what it is tested on if it says so."""
    train = _load(centre.train)
    first = _pair(train, "", centre.train)
    if centre.test is not None:
        return first, _pair(_load(centre.test), "", centre.test)
    return first, _pair(train, "_test", centre.train) if {"X_test", "y_test"} & set(train) else None


def _load(path: Path) -> dict[str, NDArray[Any]]:
    found = path.stat()
    return _read_arrays(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=64)
def _read_arrays(path: Path, changed: int, size: int) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, zipfile.BadZipFile) as cause:
        raise InputError(f"{path}: expected arrays saved by numpy.savez, but it cannot be read: {cause}") from cause


def _pair(arrays: dict[str, NDArray[Any]], end: str, path: Path) -> Pair:
    for name in (f"X{end}", f"y{end}"):
        if name not in arrays:
            raise InputError(f"{path}: expected an array {name}, but it has {', '.join(arrays) or 'none'}")
    X, y = arrays[f"X{end}"], arrays[f"y{end}"]
    if X.ndim == 0 or y.ndim == 0 or len(X) != len(y) or not len(X):
        raise InputError(f"{path}: X{end} and y{end} must have as many rows, but have shapes {X.shape} and {y.shape}")
    return (X.astype(np.float32) / 255 if X.dtype == np.uint8 else X), y


# -- tables ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PooledColumn(TableColumn):
    """The same column of several files."""

    parts: tuple[TableColumn, ...] = ()

    def row(self, place: int) -> str:
        """Return the file, column and row of a cell, for an error message."""
        for part in self.parts:
            if place < len(part.codes):
                return part.row(place)
            place -= len(part.codes)
        raise IndexError(place)


class PooledColumns(Columns):
    """The columns of several files with the same header, below each other, and the columns CENTRE and SPLIT."""

    def __init__(self, folder: Path, files: list[tuple[str, str, Columns]]) -> None:
        self.path = folder
        self._parts = [columns for _, _, columns in files]
        first = self._parts[0]
        for columns in self._parts:
            if set(columns.names) != set(first.names):
                odd = sorted(set(columns.names) ^ set(first.names))[0]
                has, lacks = (columns, first) if odd in columns.names else (first, columns)
                raise InputError(
                    f"{has.path} has a column {odd!r}, but {lacks.path} has none: give all the same columns"
                )
        given = any(part == "test" for _, part, _ in files)
        self.names = (*first.names, CENTRE, *([SPLIT] if given else []))
        self.rows = sum(columns.rows for columns in self._parts)
        lengths = [columns.rows for columns in self._parts]
        self._known = {
            CENTRE: _labels([centre for centre, _, _ in files], lengths, f"{folder}, the names of its centres"),
            SPLIT: _labels([part for _, part, _ in files], lengths, f"{folder}, train and test"),
        }

    def named(self, name: str) -> TableColumn:
        """Return a column whose cells are used as names; it may mix numbers and words."""
        if name not in self._known:
            self.check(name)
            self._known[name] = _merged([part.named(name) for part in self._parts], f"{self.path}, column {name!r}")
        return self._known[name]


def _pooled(centres: list[Centre]) -> PooledColumns:
    """Return the rows of all centres' files as one table."""
    files = []
    for centre in centres:
        files.append((centre.name, "train", read_columns(str(centre.train))))
        if centre.test is not None:
            files.append((centre.name, "test", read_columns(str(centre.test))))
    return PooledColumns(centres[0].train.parent if centres[0].test is None else centres[0].train.parent.parent, files)


def _labels(words: list[str], lengths: list[int], where: str) -> TableColumn:
    distinct = sorted(set(words))
    codes = np.repeat([distinct.index(word) for word in words], lengths)
    return TableColumn(where, 1, None, tuple(distinct), codes)


def _merged(parts: list[TableColumn], where: str) -> TableColumn:
    """Return columns of several files as one; words in one file among the numbers of others are a mistake."""
    filled = [part for part in parts if len(part.words)]
    numeric = [part for part in filled if part.values is not None]
    stray = next((part.stray for part in parts if part.stray is not None), None)
    if stray is None and numeric and len(numeric) < len(filled):
        odd = next(part for part in filled if part.values is None)
        stray = (
            f"{odd.row(int(np.argmax(~odd.empty)))}: expected a number as in {numeric[0].where}, but "
            f"{odd.words[0]!r} came: mend the cell or leave it empty; if these are names, list the column under "
            "`categories`"
        )
    key = float if numeric and len(numeric) == len(filled) and not any(part.flags for part in filled) else str
    words = tuple(sorted({word for part in parts for word in part.words}, key=key))
    place = {word: number for number, word in enumerate(words)}
    codes = [np.array([*(place[word] for word in part.words), -1])[part.codes] for part in parts]
    values = None
    if numeric and len(numeric) == len(filled):
        values = np.concatenate([np.full(len(p.codes), np.nan) if p.values is None else p.values for p in parts])
    flags = bool(filled) and all(part.flags for part in filled)
    return PooledColumn(where, 1, values, words, np.concatenate(codes), flags, stray, tuple(parts))
