"""Estimates drift: the error that all offsets remembered by the server step `remembering` share (docs/theory.md)."""

from __future__ import annotations

import math

import numpy as np

from fedpace._base.checks import FloatArray

LARGEST = 1e100
"""Ignore changes with a coordinate at or above this size: their squares would overflow."""


class Drift:
    """Collects the changes that late answers reveal in one step, and estimates what the changes have in common."""

    def __init__(self) -> None:
        self._total: FloatArray | float = 0.0
        self._squares = self._weight = self._weights = self._way = 0.0

    def add(self, share: float, change: FloatArray, way: float) -> None:
        """Add one late answer: how the client's offset changed since its previous answer, and how far the model moved.

        Both are in units of a step length, which may be almost 0. Values without a finite square are ignored.
        """
        if not (math.isfinite(way * way) and float(np.abs(change).max(initial=0.0)) < LARGEST):
            return
        self._total = self._total + share * change
        self._squares += share**2 * float(change @ change)
        self._weight += share
        self._weights += share**2
        self._way += share * way

    def common(self) -> tuple[float, float] | None:
        """Return the squared length of the common change, and the squared mean distance; None with too few clients.

        Only products between different clients enter, so that noise of single clients cancels on average. The estimate
        may be negative by chance.
        """
        pairs = self._weight**2 - self._weights
        if not pairs > 1e-9 * self._weight**2:
            return None
        total = np.asarray(self._total)
        return (float(total @ total) - self._squares) / pairs, (self._way / self._weight) ** 2
