"""Models as named arrays: which arrays are buffers, and sketches and lengths of updates.

The sketch is the same seeded count sketch as in the simulator, so all hosts and clients get the same result. Buffers,
such as the statistics of a batch norm, are not part of an update. An array is a buffer if it is not floating, or if its
name ends like the running statistics of torch or Keras.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import FloatArray
from fedpace.numerics.count_sketch import CountSketch

Arrays = Mapping[str, NDArray[np.generic]]
BUFFERS = ("running_mean", "running_var", "moving_mean", "moving_variance")
"""Last parts of the names of batch-norm statistics, after the layer's name."""


def is_buffer(name: str, array: NDArray[np.generic]) -> bool:
    """Return whether an array is a buffer, which the server averages and never extrapolates."""
    return not np.issubdtype(array.dtype, np.floating) or name.replace("/", ".").rpartition(".")[2] in BUFFERS


def is_variance(name: str) -> bool:
    """Return whether an array holds variances, which must be at least 0."""
    return name.replace("/", ".").rpartition(".")[2] in ("running_var", "moving_variance")


class UpdateSketch:
    """A fixed projection of updates to `width` entries; width 0 = the updates themselves."""

    def __init__(self, current: Arrays, width: int, *, seed: int) -> None:
        """Make the projection for models with the arrays of `current`."""
        self._shapes = {key: array.shape for key, array in current.items() if not is_buffer(key, array)}
        length = sum(math.prod(shape) for shape in self._shapes.values())
        self._sketch = CountSketch(length, width, seed=seed)
        self.width = self._sketch.width

    def __call__(self, trained: Arrays, current: Arrays) -> FloatArray | None:
        """Return the sketch of trained - current; None if arrays are missing, of another shape, or not finite."""
        return self._of(flat(trained, self._shapes) - flat(current, self._shapes)) if self._fits(trained) else None

    def of_step(self, step: Arrays) -> FloatArray | None:
        """Return the sketch of an update; None if arrays are missing, of another shape, or not finite."""
        return self._of(flat(step, self._shapes)) if self._fits(step) else None

    def _of(self, vector: FloatArray) -> FloatArray | None:
        return self._sketch(vector) if np.isfinite(vector).all() else None

    def _fits(self, arrays: Arrays) -> bool:
        return all(key in arrays and arrays[key].shape == shape for key, shape in self._shapes.items())


def flat(arrays: Arrays, names: Iterable[str]) -> FloatArray:
    """Return the named arrays as one flat vector, in the order of `names`."""
    parts = [np.asarray(arrays[name], dtype=np.float64).ravel() for name in names]
    return np.concatenate(parts) if parts else np.zeros(0)


def buffer_lengths(models: Sequence[tuple[Arrays, Arrays]]) -> dict[str, list[float]]:
    """Return kind of buffer -> Euclidean distance of each model's buffers from the sent ones.

    The kind is the last part of the name, or `counters`. A buffer of another shape counts as not moved. A distance that
    overflows is infinite.

    Args:
        models: (trained, sent) of each client.
    """
    names = {key for trained, _ in models for key, array in trained.items() if is_buffer(key, array)}
    kinds: dict[str, list[float]] = {}
    for key in sorted(names):
        last = key.replace("/", ".").rpartition(".")[2]
        squares = kinds.setdefault(last if last in BUFFERS else "counters", [0.0] * len(models))
        for place, (trained, sent) in enumerate(models):
            if key in trained and key in sent and np.shape(trained[key]) == np.shape(sent[key]):
                with np.errstate(over="ignore", invalid="ignore"):
                    squares[place] += float(np.sum((np.float64(trained[key]) - np.float64(sent[key])) ** 2))
    return {kind: [math.sqrt(square) for square in squares] for kind, squares in kinds.items()}
