"""The best mixture of all points, which `prefix_mixtures` gives for the longest prefix."""

from __future__ import annotations

import numpy as np

from fedpace.numerics.simplex import Mixture, prefix_mixtures


def best_mixture(points: np.ndarray, *, own: float = 0.0, max_clients: int | None = None) -> Mixture:
    order = np.arange(len(points))
    return next(prefix_mixtures(points, order, [len(points)], own=own, max_clients=max_clients))
