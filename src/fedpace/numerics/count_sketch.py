"""Count sketch: a seeded projection of long vectors to short ones.

Charikar, Chen and Farach-Colton, "Finding Frequent Items in Data Streams" (ICALP 2002). Each coordinate is added with a
random sign to one random entry. Inner products and squared distances are preserved on average, with one pass over the
vector and without a matrix.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import FloatArray
from fedpace._base.rng import stream


class CountSketch:
    """A fixed projection from `length` to `width` entries; the identity if width is 0 or at least `length`."""

    def __init__(self, length: int, width: int, *, seed: int) -> None:
        self.width = width if 0 < width < length else length
        self._whole = self.width == length
        if not self._whole:
            rng = stream(seed, "sketch")
            self._entry = rng.integers(0, self.width, length)
            self._sign = rng.choice(np.array([-1.0, 1.0]), length)

    def __call__(self, vector: ArrayLike) -> FloatArray:
        """Return the sketch of `vector`, a NumPy array or a torch tensor."""
        values = np.asarray(vector, dtype=np.float64)
        if self._whole:
            return values
        return np.asarray(np.bincount(self._entry, weights=self._sign * values, minlength=self.width), np.float64)
