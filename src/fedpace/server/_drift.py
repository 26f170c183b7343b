"""By how much what a server remembers of clients is off in the same way for all of them (docs/theory.md)."""

from __future__ import annotations

import math

import numpy as np

from fedpace._base.checks import FloatArray

LARGEST = 1e100
"""Changes beyond this are not squared."""


class Drift:
    """By how much remembered differences were off in the same way, as late answers tell."""

    def __init__(self) -> None:
        self._total: FloatArray | float = 0.0
        self._squares = self._weight = self._weights = self._way = 0.0

    def add(self, share: float, change: FloatArray, way: float) -> None:
        """Take in how a client's difference has changed since it was heard before, and how far the model has gone.

        What has no finite square says nothing: it is measured by steps, and one of them may have gone nearly nowhere.
        """
        if not (math.isfinite(way * way) and float(np.abs(change).max(initial=0.0)) < LARGEST):
            return
        self._total = self._total + share * change
        self._squares += share**2 * float(change @ change)
        self._weight += share
        self._weights += share**2
        self._way += share * way

    def common(self) -> tuple[float, float] | None:
        """Return the squared lengths of what the changes have in common and of the way; None = too few tell.

        Products of different clients only, so that what is random in each of them is none of it on average; it may be
        below 0 by chance.
        """
        pairs = self._weight**2 - self._weights
        if not pairs > 1e-9 * self._weight**2:
            return None
        total = np.asarray(self._total)
        return (float(total @ total) - self._squares) / pairs, (self._way / self._weight) ** 2
