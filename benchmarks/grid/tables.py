"""Federations with natural clients, out of tables: schools, classes, lecturers, each with the rows that are its own.

A folder holds CSV or parquet files and a `tables.json` that says how to read each of them:

    {"schools": {"file": "schools.csv", "client": "school", "target": "score", "features": ["age", "sex"]}}

Columns of words become one 0/1 column per word, and so do those listed under `categories`; numbers are standardised.
`"kind": "softmax"` makes the target a class. Nothing in the grid was tuned on these data: they are for finding out
whether what was learnt on digits holds elsewhere. `benchmarks/natural_tables.py` writes such a folder.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.data.federated import FederatedData, Metric, Samples
from fedpace.models.builtin import Linear, Softmax
from fedpace.sim.training import Training
from grid.cells import Task

LISTING = "tables.json"
RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
Kind = Literal["linear", "softmax"]


@dataclass(frozen=True)
class Table:
    """The rows of one table, each client's own; judged by the loss on a part of every client's rows.

    Args:
        path: a CSV or parquet file.
        client: column that names the client.
        target: column to predict.
        features: columns to predict it from.
        categories: those of the features that are names, though they look like numbers.
        kind: `linear` regression on the standardised target, or `softmax` regression on its classes.
        least: rows that a client needs to take part.
        most: clients at the most, those with the most rows; 0 = all.
        cap: rows of a client at the most, its first ones; 0 = all.
        test_fraction: share of each client's rows that is held out.
    """

    name: ClassVar[str] = "table"
    metric: ClassVar[Metric] = "loss"

    path: str
    client: str
    target: str
    features: tuple[str, ...]
    categories: tuple[str, ...] = ()
    kind: Kind = "linear"
    least: int = 8
    most: int = 0
    cap: int = 0
    test_fraction: float = 0.2

    @property
    def has_labels(self) -> bool:
        """Whether clients have label histograms."""
        return self.kind == "softmax"

    @property
    def clients(self) -> int:
        """How many take part."""
        return len(self._owners())

    def build(self, *, seed: int) -> FederatedData:
        """Split each client's rows into those it trains on and those that are held out."""
        columns, owners = _columns(self.path), self._owners()
        order = np.concatenate(owners)
        inputs = np.column_stack([_numbers(columns[name], name in self.categories) for name in self.features])
        # Over those that take part: what is left out must not move the scales.
        scaled = _standardised(inputs, order)
        classes: int | None = None
        targets: NDArray[Any]
        if self.kind == "softmax":
            names, numbers = np.unique(columns[self.target], return_inverse=True)
            classes, targets = len(names), numbers.astype(np.int64)
        else:
            targets = _standardised(columns[self.target].astype(np.float64)[:, None], order)[:, 0]
        train, test = [], []
        for number, rows in enumerate(owners):
            shuffled = stream(seed, "data", "table", number).permutation(rows)
            held_out = max(1, round(self.test_fraction * rows.size))
            test.append(Samples(scaled[shuffled[:held_out]], targets[shuffled[:held_out]]))
            train.append(Samples(scaled[shuffled[held_out:]], targets[shuffled[held_out:]]))
        return FederatedData(
            name=Path(self.path).stem,
            train=tuple(train),
            test=Samples(np.concatenate([s.inputs for s in test]), np.concatenate([s.targets for s in test])),
            classes=classes,
            metric=self.metric,
            test_sizes=tuple(len(samples) for samples in test),
        )

    def _owners(self) -> list[NDArray[np.int64]]:
        """Rows of each client that takes part, in the order of their names."""
        columns = _columns(self.path)
        for name in (self.client, self.target, *self.features):
            if name not in columns:
                raise InputError(f"{self.path} has no column {name!r}: it has {', '.join(columns)}")
        _, owner = np.unique(columns[self.client], return_inverse=True)
        sizes = np.bincount(owner)
        kept = np.flatnonzero(sizes >= self.least)
        if self.most:
            kept = np.sort(kept[np.argsort(-sizes[kept], kind="stable")][: self.most])
        if not kept.size:
            raise InputError(f"no client of {self.path} has the {self.least} rows that it needs: lower `least`")
        return [np.flatnonzero(owner == each)[: self.cap or None] for each in kept]


def tasks(folder: Path | str) -> tuple[Task, ...]:
    """Return the tasks of a folder of tables: targets leave 10 % and 2 % of the initial excess over the plateau."""
    folder = Path(folder)
    listing = folder / LISTING
    if not listing.exists():
        raise InputError(f"expected {listing}, which names the tables and their columns, but there is no such file")
    found = []
    for name, entry in json.loads(listing.read_text(encoding="utf-8")).items():
        options: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
        }
        data = Table(str(folder / options.pop("file")), **options)
        model = Linear(bias=True) if data.kind == "linear" else Softmax()
        found.append(
            Task(
                name,
                data,
                model,
                Training(epochs=5, batch=16, lr=0.03),
                RATES,
                easy=0.10,
                hard=0.02,
                rare="features",
            )
        )
    return tuple(found)


@cache
def _columns(path: str) -> dict[str, NDArray[Any]]:
    """Each column as numbers where all its cells are, as words otherwise; rows with an empty cell are left out."""
    if path.endswith(".parquet"):
        from pyarrow import parquet

        table = parquet.read_table(path)
        header = table.column_names
        rows: list[Any] = list(zip(*(table[name].to_pylist() for name in header), strict=True))
    else:
        with Path(path).open(newline="", encoding="utf-8") as file:
            header, *rows = list(csv.reader(file))
    whole = [row for row in rows if all(cell not in ("", "NA", None) for cell in row)]
    found = {}
    for name, cells in zip(header, zip(*whole, strict=True), strict=True):
        try:
            found[name] = np.array([float(cell) for cell in cells])
        except ValueError:
            found[name] = np.array(cells)
    return found


def _numbers(column: NDArray[Any], names: bool) -> NDArray[np.float64]:
    if column.dtype.kind == "f" and not names:
        return column[:, None]
    values = np.unique(column)
    # One word says by its absence what another would say: the model has a bias.
    return np.asarray(column[:, None] == values[None, 1:], dtype=np.float64)


def _standardised(values: NDArray[np.float64], rows: NDArray[np.int64]) -> NDArray[np.float32]:
    mean, deviation = values[rows].mean(axis=0), values[rows].std(axis=0)
    scaled: NDArray[np.float32] = ((values - mean) / np.where(deviation > 0, deviation, 1.0)).astype(np.float32)
    return scaled
