"""`OwnedRows`, the base class of data sets whose rows have owners, such as writers: it turns owners into clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedpace._base.errors import InputError
from fedpace._base.options import AtLeast, Between, Options
from fedpace._base.rng import stream
from fedpace.data import hub
from fedpace.data.federated import FederatedData, Metric, Samples
from fedpace.data.partition import iid_partition

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class OwnedRows(Options):
    """A data set whose rows have owners; the subclasses document the fields."""

    name: ClassVar[str]
    metric: ClassVar[Metric] = "accuracy"

    clients: Annotated[int, AtLeast(0)] = 100
    partition: Literal["natural", "iid"] = "natural"
    min_samples: Annotated[int, AtLeast(2)] = 100
    test_fraction: Annotated[float, Between(0, 1, "()")] = 0.1
    folder: str = ""

    def hold_out(self, rows: Rows, rng: np.random.Generator) -> tuple[Rows, Rows]:
        """Return an owner's training rows and its test rows."""
        raise NotImplementedError

    def prepared(self, inputs: NDArray[np.uint8]) -> NDArray[Any]:
        """Convert stored inputs to model inputs."""
        raise NotImplementedError

    def build(self, *, seed: int) -> FederatedData:
        """Return the data of `seed`, which draws the clients."""
        decoded = hub.load(self.name, self.folder)
        rows = decoded.splits["train"]
        held = self.held(rows.owners, seed)
        trains, tests = [train for train, _ in held], [test for _, test in held]
        if self.partition == "iid":
            rng = stream(seed, "data", self.name, "partition")
            trains, tests = _dealt(trains, rng), _dealt(tests, rng)
        for train in trains:
            if train.size == 0:
                raise InputError(f"a client of {self.name} would hold no training rows: raise min_samples")
        tested = np.concatenate(tests)
        return FederatedData(
            name=self.name,
            train=tuple(Samples(self.prepared(rows.inputs[own]), rows.labels[own]) for own in trains),
            test=Samples(self.prepared(rows.inputs[tested]), rows.labels[tested]),
            classes=decoded.source.classes,
            metric=self.metric,
            test_sizes=tuple(len(test) for test in tests),
        )

    def held(self, owners: Rows | None, seed: int, *, everybody: bool = False) -> list[tuple[Rows, Rows]]:
        """Return training and test rows of the owners that take part: `clients` of them, or all eligible owners."""
        if owners is None:
            raise InputError(f"{self.name} does not say whose its rows are")
        return [
            self.hold_out(own, stream(seed, "data", self.name, "test", owner))
            for owner, own in self._owners(owners, seed, 0 if everybody else self.clients)
        ]

    def _owners(self, owners: Rows, seed: int, clients: int) -> list[tuple[int, Rows]]:
        """Draw the owners that take part from those with enough rows; return each with its rows."""
        counts = np.bincount(owners)
        eligible = np.flatnonzero(counts >= self.min_samples)
        wanted = clients or len(eligible)
        if wanted > len(eligible) or not len(eligible):
            raise InputError(
                f"{wanted} clients of {self.name} were asked for, but only {len(eligible)} of its {len(counts)} have "
                f"min_samples = {self.min_samples} rows or more: lower one of the two"
            )
        chosen = np.sort(stream(seed, "data", self.name, "owners").choice(eligible, wanted, replace=False))
        # Rows of one owner need not be adjacent, but they keep their order.
        order = np.argsort(owners, kind="stable")
        starts = np.concatenate([[0], np.cumsum(counts)])
        return [(int(owner), order[starts[owner] : starts[owner + 1]]) for owner in chosen]


def _dealt(parts: list[Rows], rng: np.random.Generator) -> list[Rows]:
    """Pool the rows and distribute them evenly at random."""
    pooled = np.concatenate(parts)
    return [pooled[part] for part in iid_partition(len(pooled), len(parts), rng)]
