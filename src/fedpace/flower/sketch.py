"""Sketches of updates, made by the server from the models that clients send anyway.

The same seeded count sketch as the simulator's (`fedpace.sim.sketch`), on NumPy alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedpace.core.checks import FloatArray
from fedpace.core.rng import stream


class UpdateSketch:
    """A fixed projection of updates to `width` entries; width 0 = the updates themselves."""

    def __init__(self, current: Mapping[str, NDArray[np.generic]], width: int, *, seed: int) -> None:
        """Take the shapes of the shared model's arrays."""
        self._keys = list(current)
        length = sum(int(array.size) for array in current.values())
        self._width = width if 0 < width < length else length
        self._whole = self._width == length
        if not self._whole:
            rng = stream(seed, "sketch")
            self._entry = rng.integers(0, self._width, length)
            self._sign = rng.choice(np.array([-1.0, 1.0]), length)

    def __call__(self, trained: ArrayRecord, current: Mapping[str, NDArray[np.generic]]) -> FloatArray | None:
        """Return the sketch of trained - current; None where the client sent other arrays than the model's."""
        if any(key not in trained or trained[key].numpy().shape != current[key].shape for key in self._keys):
            return None
        parts = [
            (trained[key].numpy().astype(np.float64) - current[key].astype(np.float64)).ravel() for key in self._keys
        ]
        update = np.concatenate(parts)
        if not np.isfinite(update).all():
            return None
        if self._whole:
            return update
        return np.asarray(np.bincount(self._entry, weights=self._sign * update, minlength=self._width), np.float64)
