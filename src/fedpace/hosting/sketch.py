"""Sketches of updates, of models that are named arrays.

The same seeded count sketch as the simulator's, so that all hosts, and clients that sketch themselves, report alike.
Buffers, such as the statistics of a batch norm, are no part of an update. A model's arrays do not say which of them are
buffers: those of integers are, and those whose names end as torch and Keras call running statistics.
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
"""What a name ends with, behind the layer's, where it is a batch norm's statistic."""


def is_buffer(name: str, array: NDArray[np.generic]) -> bool:
    """Whether an array is averaged, and never extrapolated."""
    return not np.issubdtype(array.dtype, np.floating) or name.replace("/", ".").rpartition(".")[2] in BUFFERS


def is_variance(name: str) -> bool:
    """Whether an array holds variances, which are at least 0."""
    return name.replace("/", ".").rpartition(".")[2] in ("running_var", "moving_variance")


class UpdateSketch:
    """A fixed projection of updates to `width` entries; width 0 = the updates themselves."""

    def __init__(self, current: Arrays, width: int, *, seed: int) -> None:
        """Take the shapes of the shared model's arrays."""
        self._shapes = {key: array.shape for key, array in current.items() if not is_buffer(key, array)}
        length = sum(math.prod(shape) for shape in self._shapes.values())
        self._sketch = CountSketch(length, width, seed=seed)
        self.width = self._sketch.width

    def __call__(self, trained: Arrays, current: Arrays) -> FloatArray | None:
        """Return the sketch of trained - current; None where the client sent other arrays than the model's."""
        return self._of(flat(trained, self._shapes) - flat(current, self._shapes)) if self._fits(trained) else None

    def of_step(self, step: Arrays) -> FloatArray | None:
        """Return the sketch of a step that is given as such; None where it has other arrays, or is not finite."""
        return self._of(flat(step, self._shapes)) if self._fits(step) else None

    def _of(self, vector: FloatArray) -> FloatArray | None:
        return self._sketch(vector) if np.isfinite(vector).all() else None

    def _fits(self, arrays: Arrays) -> bool:
        return all(key in arrays and arrays[key].shape == shape for key, shape in self._shapes.items())


def flat(arrays: Arrays, names: Iterable[str]) -> FloatArray:
    """Return arrays as one vector, in the order of the names."""
    parts = [np.asarray(arrays[name], dtype=np.float64).ravel() for name in names]
    return np.concatenate(parts) if parts else np.zeros(0)


def flat_update(trained: Arrays, sent: Arrays) -> FloatArray:
    """Return trained - sent over all but buffers as one vector; infinite where it is too large for a float."""
    names = [key for key, array in sent.items() if not is_buffer(key, array)]  # in whatever order a client sends them
    with np.errstate(over="ignore"):
        return np.asarray(flat(trained, names) - flat(sent, names))


def buffer_lengths(models: Sequence[tuple[Arrays, Arrays]]) -> dict[str, list[float]]:
    """Return how far each model's buffers moved from those that were sent, by what their names end with.

    A buffer of another shape is taken for the one that was sent, and has not moved; where squares overflow, infinity.
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
