"""Sketches of whitened moments: 64 numbers a client instead of a factor (ours, beyond the paper).

Coordinate k of client i's sketch is a sum of a'W_i b over `PROBES` pairs of Gaussian vectors, so that squared distances
between sketches are unbiased estimates of |W_i - W_j|_F^2 (a Johnson-Lindenstrauss map of rank-one probes, which a
factor meets in O(r d) instead of O(d^2)). B is the spectral norm, which is smaller: the bank measures the ratio on
pairs of pilot clients and multiplies by it. The sketch of a client needs A before it can be made, so A is that of the
first `pilot` clients, and frozen (ERRATA C4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import FloatArray, frozen
from fedpace._base.rng import stream
from fedpace.numerics.whitened import Whitened

PROBES = 4
"""Rank-one probes a coordinate: with one, a coordinate of a low-rank difference has heavy tails."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """How sketch distances relate to B, measured on pairs of pilot clients."""

    scale: float
    """B is about scale x sketch distance; 1 where there was nothing to measure (Frobenius norms then stand for B)."""
    relative_error: float
    """Root mean square of (scale x sketch distance / B - 1); NaN where there was nothing to measure."""
    pairs: int


class Sketcher:
    """The seeded map from factors to sketches; a client may run it itself, given the inverse and the seed."""

    def __init__(self, inverse: FloatArray, *, dimension: int, seed: int) -> None:
        width = len(inverse)
        rng = stream(seed, "moment-sketch", dimension, width)
        self.inverse = inverse
        self.dimension = dimension
        self._left = rng.standard_normal((width, dimension * PROBES))
        self._right = inverse @ rng.standard_normal((width, dimension * PROBES))

    def sketch(self, factor: FloatArray) -> NDArray[Any]:
        """Return the (dimension,) float32 sketch of F'F A^-1."""
        values = ((factor @ self._left) * (factor @ self._right)).sum(axis=0)
        summed = values.reshape(self.dimension, PROBES).sum(axis=1)
        return np.asarray(summed / np.sqrt(PROBES * self.dimension), dtype=np.float32)

    def calibrate(self, factors: list[FloatArray], *, seed: int, pairs: int = 1000) -> Calibration:
        """Compare sketch distances with exact norms on random pairs."""
        first, second = np.triu_indices(len(factors), 1)
        if len(first) > pairs:
            chosen = stream(seed, "moment-sketch", "pairs").choice(len(first), pairs, replace=False)
            first, second = first[chosen], second[chosen]
        sketches = np.array([self.sketch(factor) for factor in factors])
        distance = np.linalg.norm(sketches[first] - sketches[second], axis=1).astype(np.float64)
        exact = Whitened(factors, self.inverse).norms(first, second, tol=1e-3)
        usable = (distance > 0) & (exact > 0)
        if not usable.any():
            return Calibration(scale=1.0, relative_error=float("nan"), pairs=0)
        scale = float(exact[usable].sum() / distance[usable].sum())
        error = scale * distance[usable] / exact[usable] - 1
        return Calibration(scale=scale, relative_error=float(np.sqrt((error**2).mean())), pairs=int(usable.sum()))


def cluster(points: NDArray[Any], count: int, *, seed: int) -> NDArray[Any]:
    """Return `count` centroids of the points, by k-means; the points themselves where there are no more of them."""
    if len(points) <= count:
        return np.array(points, dtype=np.float32)
    from fedpace._base.errors import MissingExtraError

    try:
        import faiss
    except ImportError as cause:
        raise MissingExtraError("clustering a fleet's moments", extra="scale", missing="faiss") from cause
    means = faiss.Kmeans(
        points.shape[1], count, niter=8, seed=seed & 0x7FFFFFFF, max_points_per_centroid=64, min_points_per_centroid=1
    )
    means.train(np.ascontiguousarray(points, dtype=np.float32))
    return np.array(means.centroids, dtype=np.float32).reshape(count, -1)


def nearest_centroid(points: NDArray[Any], centroids: NDArray[Any]) -> NDArray[np.int64]:
    """Return the index of each point's nearest centroid."""
    labels = np.empty(len(points), dtype=np.int64)
    half = (centroids * centroids).sum(axis=1) / 2
    for start in range(0, len(points), 4096):
        part = slice(start, start + 4096)
        labels[part] = (half - points[part] @ centroids.T).argmin(axis=1)
    return frozen(labels, np.int64)
