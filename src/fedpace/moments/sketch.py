"""Sketches of whitened moments: 64 numbers per client instead of a factor (ours, not in the paper).

Coordinate k of client i's sketch is a sum of a'W_i b over `PROBES` pairs of Gaussian vectors a and b. Squared distances
between sketches are therefore unbiased estimates of |W_i - W_j|_F^2. This is a Johnson-Lindenstrauss map with rank-one
probes, which costs O(r d) per factor instead of O(d^2). B is the spectral norm, which is smaller, so the bank measures
the ratio on pairs of pilot clients and multiplies by it. A sketch depends on A, so A comes from the first `pilot`
clients and is then frozen (docs/errata.md, C4).
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
"""Rank-one probes per coordinate; a single probe has heavy tails on low-rank differences."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """The ratio between B and sketch distances, measured on pairs of pilot clients."""

    scale: float
    """B is about scale x sketch distance. Without any pair to measure it is 1, and Frobenius norms replace B."""
    relative_error: float
    """Root mean square of (scale x sketch distance / B - 1); NaN without any pair."""
    pairs: int


class Sketcher:
    """The seeded map from factors to sketches; clients can run it themselves, given the inverse and the seed."""

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
        """Return the calibration: compare sketch distances with exact norms on random pairs."""
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
    """Return `count` centroids of the points, by k-means; the points themselves if there are at most `count`."""
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
