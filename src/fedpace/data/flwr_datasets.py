"""`flwr-datasets`: files on disk, split among clients by a partitioner of Flower Datasets; nothing is fetched.

    [data]
    name = "flwr-datasets"
    path = "mnist"
    partitioner = "dirichlet(num_partitions=50, partition_by=label, alpha=0.3)"

`path` is a folder with `train*` and, if there are test rows, `test*` files (parquet, arrow, CSV or JSON lines), one
such file, or a folder that Hugging Face `datasets` saved with `save_to_disk`. `partitioner` is a class of
`flwr_datasets.partitioner` without the ending: `dirichlet` is `DirichletPartitioner`. It gets the seed of the run,
unless it has a `seed` of its own.

Images become float32 in [0, 1] of shape (channels, height, width). Several columns of numbers become one row of
numbers, as they are: scale them first. From Python, `from_federated` takes a `FederatedDataset` of your own.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import did_you_mean
from fedpace._base.errors import InputError, MissingExtraError
from fedpace._base.options import Between, Options
from fedpace._base.registry import parse_named
from fedpace._base.rng import stream
from fedpace.data.arrays import ArrayData, Problem, data_from_arrays, number_names
from fedpace.data.federated import FederatedData, Metric

KINDS = {".parquet": "parquet", ".arrow": "arrow", ".csv": "csv", ".json": "json", ".jsonl": "json"}
ENDING = "Partitioner"
ROW = "(row)"
"""Column with the number of each row, by which partitions are told apart."""
Array = NDArray[Any]


@dataclass(frozen=True)
class FlwrDatasets(Options):
    """Files on disk, split by a partitioner of Flower Datasets.

    Args:
        path: a folder with train* and test* files, one file, or a folder of `save_to_disk`; relative to the current
            folder or to the experiment's file.
        partitioner: a partitioner with its options, such as `iid(num_partitions=20)`,
            `natural-id(partition_by=writer_id)` or `dirichlet(num_partitions=50, partition_by=label, alpha=0.3)`.
        target: column to predict.
        inputs: columns to predict it from; empty = all others.
        train: name of the split that is trained on.
        test: name of the split that the model is tested on. If there is none, every client holds rows out.
        test_fraction: share of every client's rows that is held out if there is no test split.
    """

    name: ClassVar[str] = "flwr-datasets"

    path: str
    partitioner: str
    target: str = "label"
    inputs: tuple[str, ...] = ()
    train: str = "train"
    test: str = "test"
    test_fraction: Annotated[float, Between(0, 1, "()")] = 0.2

    def __post_init__(self) -> None:
        """Raise if an option is invalid."""
        super().__post_init__()
        object.__setattr__(self, "path", str(Path(self.path).expanduser().absolute()))
        object.__setattr__(self, "inputs", (self.inputs,) if isinstance(self.inputs, str) else tuple(self.inputs))

    @property
    def metric(self) -> Metric:
        """Metric of the runs; it depends on the target column, so this reads the files."""
        labels = _decoded(*self._stamp(), self.inputs, self.target, self.train)[1]
        return "loss" if np.issubdtype(labels.dtype, np.floating) else "accuracy"

    def build(self, *, seed: int) -> FederatedData:
        """Return the data of `seed`, which the partitioner gets and which draws rows that are held out."""
        stamp = self._stamp()
        splits = _splits(*stamp)
        if self.train not in splits:
            raise InputError(f"{self.path} has no split {self.train!r}: it has {', '.join(splits)}")
        train = _decoded(*stamp, self.inputs, self.target, self.train)
        test = _decoded(*stamp, self.inputs, self.target, self.test) if self.test in splits else None
        maker = make_partitioner(self.partitioner, seed)
        parts, names = _partitions(maker, splits[self.train], self.partitioner)
        held = None if test is not None else (self.test_fraction, seed)
        found = _federated(train, test, parts, names, Path(self.path).stem, held)
        return dataclasses.replace(found.build(seed=seed), name=Path(self.path).stem)

    def _stamp(self) -> tuple[Path, tuple[tuple[str, int, int], ...]]:
        """Return the path and the names, sizes and times of its files, by which decoded rows are cached."""
        path = Path(self.path)
        if not path.exists():
            raise InputError(
                f"{path}: there is no such file or folder. Files are read from disk; for a data set of the Hub make a "
                "FederatedDataset in Python and use fedpace.data.flwr_datasets.from_federated"
            )
        files = sorted(entry for entry in path.rglob("*") if entry.is_file()) if path.is_dir() else [path]
        return path, tuple((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files)


def from_federated(
    dataset: Any,
    *,
    target: str = "label",
    inputs: str | Sequence[str] = (),
    split: str | None = None,
    test: str | None = "test",
    test_fraction: float = 0.2,
    seed: int = 0,
) -> ArrayData:
    """Return the partitions of a `flwr_datasets.FederatedDataset` as data for `fedpace.compare(data=...)`.

    Args:
        dataset: the FederatedDataset; it fetches or reads its rows as it always does.
        target: column to predict.
        inputs: columns to predict it from; empty = all others.
        split: the split whose partitions are the clients; None = the only one with a partitioner.
        test: the split that the model is tested on; None = every client holds `test_fraction` of its rows out.
        test_fraction: share of rows that are held out without a test split.
        seed: draws the rows that are held out.
    """
    names = (inputs,) if isinstance(inputs, str) else tuple(inputs)
    partitioners = dataset.partitioners
    chosen = next(iter(partitioners)) if split is None and len(partitioners) == 1 else split
    if chosen not in partitioners:
        raise InputError(f"split= must name one of {', '.join(partitioners)}, the splits that have a partitioner")
    maker = partitioners[chosen]
    rows = [_arrays(maker.load_partition(at), names, target, f"partition {at}") for at in range(maker.num_partitions)]
    judged = None if test is None else _arrays(dataset.load_split(test), names, target, f"split {test}")
    edges = np.cumsum([0, *(len(y) for _, y in rows)])
    whole = np.concatenate([X for X, _ in rows]), np.concatenate([y for _, y in rows])
    parts = [np.arange(edges[at], edges[at + 1]) for at in range(len(rows))]
    held = (test_fraction, seed) if judged is None else None
    return _federated(whole, judged, parts, _natural_names(maker), "flwr-datasets", held)


def make_partitioner(text: str, seed: int) -> Any:
    """Return a partitioner from text such as `dirichlet(num_partitions=50, partition_by=label, alpha=0.3)`."""
    module = _import("flwr_datasets.partitioner")
    options = parse_named(text, "partitioner of flwr-datasets")
    name = options.pop("name")
    known = {_dashed(cls): getattr(module, cls) for cls in module.__all__ if cls != ENDING}
    if name not in known:
        raise InputError(
            f"flwr-datasets has no partitioner {name!r}.{did_you_mean(name, list(known))} Known: {', '.join(known)}"
        )
    takes = inspect.signature(known[name]).parameters
    if "seed" in takes and "seed" not in options:
        options["seed"] = seed
    try:
        return known[name](**options)
    except (TypeError, ValueError) as cause:
        raise InputError(f"partitioner {text!r} cannot be made: {cause}. Its options: {', '.join(takes)}") from cause


def _dashed(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name.removesuffix(ENDING)).lower()


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as cause:
        missing = "flwr-datasets" if (cause.name or "").startswith("flwr_datasets") else str(cause.name)
        raise MissingExtraError("the data set flwr-datasets", "flwr-datasets", missing) from cause


# -- files -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def _splits(path: Path, stamp: tuple[Any, ...]) -> dict[str, Any]:
    """Return the splits of a path as data sets of Hugging Face `datasets`."""
    datasets = _import("datasets")
    try:
        if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
            found = datasets.load_from_disk(str(path))
            return dict(found) if isinstance(found, datasets.DatasetDict) else {"train": found}
        files = [Path(name) for name, _, _ in stamp if Path(name).suffix.lower() in KINDS]
        if not files:
            raise InputError(f"{path}: expected parquet, arrow, CSV or JSON files, but there are none")
        kinds = sorted({KINDS[file.suffix.lower()] for file in files})
        if len(kinds) > 1:
            raise InputError(f"{path}: expected files of one kind, but {' and '.join(kinds)} files are there")
        return dict(datasets.load_dataset(kinds[0], data_files=_by_split(files, path)))
    except (ValueError, OSError, datasets.exceptions.DatasetsError) as cause:
        if isinstance(cause, InputError):
            raise
        raise InputError(f"{path} cannot be read: {str(cause).splitlines()[0]}") from cause


def _by_split(files: list[Path], path: Path) -> dict[str, list[str]]:
    """Return split -> files: a file's split is how its name begins, or the folder that it is in."""
    if path.is_file():
        return {"train": [str(path)]}
    found: dict[str, list[str]] = {}
    for file in files:
        named = re.match(r"[A-Za-z]+", file.name if file.parent == path else file.relative_to(path).parts[0])
        if named is None:
            raise InputError(f"{file}: a file's name must begin with its split, such as train-0.parquet")
        found.setdefault(named.group().lower(), []).append(str(file))
    return found


@lru_cache(maxsize=8)
def _decoded(
    path: Path, stamp: tuple[Any, ...], inputs: tuple[str, ...], target: str, split: str
) -> tuple[Array, Array]:
    splits = _splits(path, stamp)
    if split not in splits:
        raise InputError(f"{path} has no split {split!r}: it has {', '.join(splits)}")
    return _arrays(splits[split], inputs, target, f"{path}, {split}")


def _arrays(rows: Any, inputs: tuple[str, ...], target: str, where: str) -> tuple[Array, Array]:
    """Return inputs and targets of a data set as arrays."""
    names = list(rows.column_names)
    chosen = inputs or tuple(name for name in names if name != target)
    for name in (target, *chosen):
        if name not in names:
            raise InputError(f"{where} has no column {name!r}.{did_you_mean(name, names)} It has {', '.join(names)}")
    if not chosen:
        raise InputError(f"{where} has no column besides {target!r}: nothing to predict from")
    columns = [_column(rows, name, where) for name in chosen]
    X = (
        columns[0]
        if len(columns) == 1
        else np.concatenate([column.reshape(len(rows), -1) for column in columns], axis=1)
    )
    return X, np.asarray(rows[target][:])


def _column(rows: Any, name: str, where: str) -> Array:
    cells = rows[name][:]
    if cells and hasattr(cells[0], "convert"):  # an image of Pillow
        pixels = np.stack([np.asarray(cell.convert("L" if cells[0].mode in ("1", "L") else "RGB")) for cell in cells])
        pixels = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)
        return pixels.astype(np.float32) / 255
    try:
        found = np.asarray(cells, dtype=np.float32)
    except (TypeError, ValueError) as cause:
        raise InputError(
            f"{where}, column {name!r}: expected images, numbers or lists of as many numbers each ({cause}): name the "
            "columns to use in `inputs`"
        ) from cause
    return found


# -- clients ---------------------------------------------------------------------------------------------------------


def _partitions(maker: Any, rows: Any, text: str) -> tuple[list[NDArray[np.int64]], tuple[str, ...] | None]:
    """Return the row numbers of each client, and the clients' names where the partitioner has some."""
    try:
        maker.dataset = rows.add_column(ROW, list(range(len(rows))))
        parts = [maker.load_partition(at) for at in range(maker.num_partitions)]
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise InputError(f"partitioner {text!r} cannot split these rows: {cause}") from cause
    if any(ROW not in part.column_names or len(part.column_names) <= len(rows.column_names) for part in parts):
        raise InputError(f"partitioner {text!r} gives clients different columns: fedpace needs the same for all")
    return [np.asarray(part[ROW][:], dtype=np.int64) for part in parts], _natural_names(maker)


def _natural_names(maker: Any) -> tuple[str, ...] | None:
    named = getattr(maker, "partition_id_to_natural_id", None)
    return tuple(str(named[at]) for at in range(maker.num_partitions)) if named else None


def _federated(
    train: tuple[Array, Array],
    test: tuple[Array, Array] | None,
    parts: list[NDArray[np.int64]],
    names: tuple[str, ...] | None,
    name: str,
    held: tuple[float, int] | None,
) -> ArrayData:
    """Return the data of clients with these rows; `held` = share and seed of the rows that each client holds out."""
    X, y = train
    tests: Any = test
    if held is not None:
        fraction, seed = held
        tests, kept = [], []
        for client, rows in enumerate(parts):
            if len(rows) < 2:
                raise InputError(f"client {client} of {name} has {len(rows)} rows, so none can be held out")
            order = stream(seed, "data", "flwr-datasets", "test", client).permutation(rows)
            count = min(max(1, round(fraction * len(rows))), len(rows) - 1)
            tests.append((X[np.sort(order[:count])], y[np.sort(order[:count])]))
            kept.append(np.sort(order[count:]))
        parts = kept
    for client, rows in enumerate(parts):
        if not len(rows):
            raise InputError(f"client {client} of {name} holds no rows: use fewer partitions")
    pairs, tests, _ = number_names([(X[rows], y[rows]) for rows in parts], tests)
    judged = tests if isinstance(tests, list) else [tests]
    floats = np.issubdtype(y.dtype, np.floating)
    classes = None if floats else 1 + max(int(labels.max()) for _, labels in [*pairs, *judged])
    task: Problem = "regression" if floats else "classification"
    return data_from_arrays(pairs, tests, task=task, classes=classes, names=names)
