"""Sketches of updates, made by the server from the models that clients send anyway.

The same seeded count sketch as the simulator's, so that both hosts report alike.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedpace.core.checks import FloatArray
from fedpace.numerics.count_sketch import CountSketch


class UpdateSketch:
    """A fixed projection of updates to `width` entries; width 0 = the updates themselves."""

    def __init__(self, current: Mapping[str, NDArray[np.generic]], width: int, *, seed: int) -> None:
        """Take the shapes of the shared model's arrays."""
        self._keys = list(current)
        length = sum(int(array.size) for array in current.values())
        self._sketch = CountSketch(length, width, seed=seed)

    def __call__(self, trained: ArrayRecord, current: Mapping[str, NDArray[np.generic]]) -> FloatArray | None:
        """Return the sketch of trained - current; None where the client sent other arrays than the model's."""
        if any(key not in trained or trained[key].numpy().shape != current[key].shape for key in self._keys):
            return None
        parts = [
            (trained[key].numpy().astype(np.float64) - current[key].astype(np.float64)).ravel() for key in self._keys
        ]
        update = np.concatenate(parts)
        return self._sketch(update) if np.isfinite(update).all() else None
