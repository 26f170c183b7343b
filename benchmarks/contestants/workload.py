"""A workload as files: what every contestant trains, from the same samples, the same start and the same cohorts.

NumPy only, so that peers can read it in an environment of their own.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Options:
    """How clients train."""

    model: str
    """`conv2` (20, 50 channels, 500 hidden units), `mlp` (64 hidden units) or `softmax`."""
    epochs: int
    batch: int
    lr: float
    momentum: float


@dataclass(frozen=True, eq=False)
class Workload:
    """Clients' samples end to end, the test set, the initial parameters and who trains in which round."""

    options: Options
    inputs: NDArray[np.float32]
    targets: NDArray[np.int64]
    starts: NDArray[np.int64]
    """Client i holds the samples from starts[i] up to starts[i + 1]."""
    test_inputs: NDArray[np.float32]
    test_targets: NDArray[np.int64]
    initial: NDArray[np.float32]
    """All parameters, layer after layer, each layer's weight before its bias."""
    cohorts: NDArray[np.int64]
    """(rounds, k); after the last row comes the first again."""

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.starts) - 1

    def cohort(self, step: int) -> list[int]:
        """Return who trains in round `step`, counted from 0."""
        cohort: list[int] = self.cohorts[step % len(self.cohorts)].tolist()
        return cohort

    def client(self, client: int) -> slice:
        """Return where the client's samples are."""
        return slice(int(self.starts[client]), int(self.starts[client + 1]))

    def save(self, folder: Path) -> None:
        """Write the workload; arrays as .npy, which `load` maps instead of reading."""
        folder.mkdir(parents=True)
        (folder / "options.json").write_text(json.dumps(dataclasses.asdict(self.options)))
        for name in _ARRAYS:
            np.save(folder / f"{name}.npy", getattr(self, name))


_ARRAYS = [field.name for field in dataclasses.fields(Workload) if field.name != "options"]


def load(folder: Path) -> Workload:
    """Map a saved workload."""
    options = Options(**json.loads((folder / "options.json").read_text()))
    return Workload(options, **{name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS})
