"""SketchedBank: a moment bank for up to millions of clients, with sketches instead of factors.

`best_prefix` works as in `MomentBank`, but approximately: it compares clients with a few thousand clusters instead of
with each other (`fedpace.moments.scan`; clustering needs faiss, extra `scale`). For up to `DENSE_LIMIT` clients, the
bank also estimates `heterogeneity` from sketch distances, so that every scheme runs on it unchanged.
benchmarks/scale.py measures the loss from the approximation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace._base.checks import FloatArray, IntArray, at_least, float_array, frozen, shares_among
from fedpace._base.checks import delays as checked_delays
from fedpace._base.checks import shares as checked_shares
from fedpace._base.errors import InputError
from fedpace.moments.checked import checked_moment
from fedpace.moments.known import check_matrix
from fedpace.moments.rescaling import RescaledPrefix, rescaled
from fedpace.moments.scan import Clusters, distances, scan_clusters
from fedpace.moments.sketch import Calibration, Sketcher, cluster, nearest_centroid
from fedpace.moments.sketch_store import SketchStore
from fedpace.numerics.heterogeneity import mean_moment
from fedpace.numerics.inverse import regularised_inverse
from fedpace.numerics.prefix import candidate_rows

DENSE_LIMIT = 5000
RECLUSTER_AT = 0.1
"""Recluster when this fraction of clients has new sketches."""


class SketchedBank(SketchStore):
    """Sketches of the clients' whitened moments; created by `MomentBank.sketched`.

    Args:
        count: initial number of rows.
        ridge: added to A before it is inverted; fixed, because sketches depend on it.
        dimension: numbers stored per client.
        prototypes: largest number of clusters.
        pilot: number of first clients whose factors define A and the calibration; the factors are dropped afterwards.
        seed: of the probes and the clusters.
    """

    def __init__(self, count: int = 0, *, ridge: float, dimension: int, prototypes: int, pilot: int, seed: int) -> None:
        at_least(ridge, 0, "ridge")
        for value, what in ((dimension, "dimension"), (prototypes, "prototypes"), (pilot, "pilot")):
            at_least(value, 1, what)
        self.ridge, self.prototypes, self.pilot, self.seed = ridge, prototypes, pilot, seed
        super().__init__(count, dimension)
        self._pending: dict[int, FloatArray] = {}
        self._sketcher: Sketcher | None = None
        self._calibration = Calibration(scale=1.0, relative_error=float("nan"), pairs=0)
        self._centroids: NDArray[Any] | None = None
        self._width: int | None = None

    @property
    def width(self) -> int | None:
        """Number of columns of every factor; None before the first moment."""
        return self._width

    @property
    def calibration(self) -> Calibration:
        """The ratio between B and sketch distances; if A is not fixed yet, fixes it from the clients known so far."""
        self._settle()
        return self._calibration

    def remove(self, rows: IntArray) -> None:
        """Drop the rows of clients that left; later rows move up."""
        gone = self._drop(rows)
        lost = set(gone.tolist())
        self._pending = {
            row - int(np.searchsorted(gone, row)): factor for row, factor in self._pending.items() if row not in lost
        }

    def put(self, row: int, factor: ArrayLike) -> None:
        """Store the sketch of client `row`'s moment F'F; the first `pilot` factors are kept until A is fixed."""
        row = self._row(row)
        matrix = checked_moment(factor, row, self._width)
        self._width = matrix.shape[1]
        if self._sketcher is None:
            self._pending[row] = frozen(matrix)
            self._known[row] = True
            self.version += 1
            if len(self._pending) >= self.pilot:
                self._settle()
        else:
            self.put_sketches(np.array([row]), self._sketcher.sketch(matrix)[None, :])

    def heterogeneity(self, *, ridge: float, shares: ArrayLike | None = None) -> FloatArray:
        """(n, n) estimate of B from sketch distances, for up to `DENSE_LIMIT` clients; NaN for unknown clients."""
        self._check_dense("heterogeneity")
        rows = np.flatnonzero(self._known)
        result = np.full((len(self), len(self)), np.nan)
        result[np.ix_(rows, rows)] = self.known_heterogeneity(ridge=ridge, shares=shares)
        return frozen(result)

    def known_heterogeneity(self, *, ridge: float, shares: ArrayLike | None = None) -> FloatArray:
        """(m, m) estimate of B among the m known clients; use it if few of many clients are known."""
        self._check_ridge(ridge)
        self._settle()
        points = self._sketches[self._known].astype(np.float64)
        check_matrix(len(points), "heterogeneity")
        squares = (points * points).sum(axis=1)
        result = np.asarray(squares[:, None] + squares)
        result -= 2 * points @ points.T
        np.maximum(result, 0.0, out=result)
        np.sqrt(result, out=result)
        result *= self._calibration.scale
        np.fill_diagonal(result, 0.0)
        result.setflags(write=False)
        return result

    def gram(self, *, ridge: float, shares: ArrayLike | None = None) -> FloatArray:
        """(n, n) estimate of the whitened Gram matrix from the sketches; NaN for unknown clients."""
        self._check_dense("Gram matrix")
        points = self.directions(ridge=ridge, shares=shares)
        return frozen(points @ points.T)

    def known_gram(self, *, ridge: float, shares: ArrayLike | None = None) -> FloatArray:
        """(m, m) estimate of the whitened Gram matrix among the m known clients."""
        check_matrix(int(self._known.sum()), "Gram matrix")
        points = self.directions(ridge=ridge, shares=shares)[self._known]
        return frozen(points @ points.T)

    def directions(self, *, ridge: float, shares: ArrayLike | None = None) -> FloatArray:
        """(n, dimension) centred sketches; their inner products are unbiased estimates of the Gram matrix."""
        self._check_ridge(ridge)
        self._settle()
        weights = np.where(self._known, checked_shares(shares, len(self)), 0.0)
        weights = checked_shares(weights if weights.any() else self._known.astype(np.float64), len(self))
        points = np.where(self._known[:, None], self._sketches.astype(np.float64), 0.0)
        points = (points - weights @ points) / np.sqrt(self._width or 1)
        points[~self._known] = np.nan
        return frozen(points)

    def best_prefix(
        self,
        delay: ArrayLike,
        *,
        ridge: float,
        shares: ArrayLike | None = None,
        candidates: ArrayLike | None = None,
        target: float = 0.0,
        max_clients: int | None = None,
    ) -> RescaledPrefix:
        """Return approximately the set that `MomentBank.best_prefix` returns; same arguments, but ridge is fixed."""
        self._check_ridge(ridge)
        tau = float_array(delay, "delays", finite=False)
        if tau.size != len(self):
            raise InputError(f"expected {len(self)} delays, one per client, but {tau.size} came")
        rows = np.flatnonzero(self._known)
        allowed = np.zeros(len(self), dtype=np.bool_)
        allowed[candidate_rows(candidates, len(self))] = True
        chosen = candidate_rows(allowed[rows], rows.size)
        checked_delays(tau[rows[chosen]], name=lambda index: f"client {rows[chosen[index]]}")
        fleet = self._clusters(rows, shares_among(checked_shares(shares, len(self)), rows))
        prototypes = Clusters(
            fleet.centroids, np.arange(len(fleet.centroids)), fleet.centroids, fleet.mass(), fleet.scale
        )
        reach = distances(prototypes, prototypes.labels, fleet.spread())
        np.fill_diagonal(reach, fleet.scale * np.sqrt(2 * fleet.spread()))
        largest = float((reach @ fleet.mass()).max())
        scale = rescaled(largest, target)
        scaled = Clusters(fleet.sketches, fleet.labels, fleet.centroids, fleet.shares, fleet.scale * scale)
        found = scan_clusters(scaled, tau[rows], chosen, max_clients=max_clients)
        return RescaledPrefix.of(found, rows, largest_mean=largest, scale=scale)

    def refresh(self) -> None:
        """Drop the clusters; the next query makes new ones."""
        self._centroids = None

    def arrays(self) -> dict[str, FloatArray]:
        """Return the state as plain arrays; `load` of a bank with the same options restores it."""
        saved: dict[str, Any] = {
            "options": np.array([self.ridge, self.dimension, self.seed, self._width or 0], dtype=np.float64),
            "sketches": np.where(self._known[:, None], self._sketches.astype(np.float64), np.nan),
            "calibration": np.array([self._calibration.scale, self._calibration.pairs], dtype=np.float64),
            "relative_error": np.array([np.nan_to_num(self._calibration.relative_error, nan=-1.0)]),
            "pending": np.array([[row, len(factor)] for row, factor in self._pending.items()]).reshape(-1, 2),
            "factors": np.vstack([*self._pending.values(), np.zeros((0, self._width or 0))]),
        }
        if self._sketcher is not None:
            saved["inverse"] = self._sketcher.inverse
        return {name: np.asarray(array, dtype=np.float64) for name, array in saved.items()}

    def load(self, arrays: Mapping[str, FloatArray]) -> None:
        """Restore the state that `arrays` returned; clusters are made again."""
        wanted = {"options", "sketches", "calibration", "relative_error", "pending", "factors"}
        if wanted - set(arrays):
            raise InputError(
                f"a saved sketched bank holds {sorted(wanted)}, but {sorted(wanted - set(arrays))} is missing"
            )
        ridge, dimension, seed, width = (float(value) for value in arrays["options"])
        if (ridge, dimension, seed) != (self.ridge, self.dimension, self.seed):
            raise InputError(
                f"the saved sketches have (ridge, dimension, seed) = {(ridge, int(dimension), int(seed))}, but this "
                f"bank has {(self.ridge, self.dimension, self.seed)}: make it with the same options"
            )
        sketches = np.asarray(arrays["sketches"], dtype=np.float64)
        self._known = np.asarray(np.isfinite(sketches).all(axis=1), dtype=np.bool_)
        self._sketches = np.nan_to_num(sketches).astype(np.float32)
        self._labels = np.full(len(sketches), -1, dtype=np.int64)
        error = float(arrays["relative_error"][0])
        scale, pairs = (float(value) for value in arrays["calibration"])
        self._calibration = Calibration(scale, float("nan") if error < 0 else error, int(pairs))
        self._width = int(width) or None
        self._pending, end = {}, 0
        for row, rank in np.asarray(arrays["pending"], dtype=np.int64).reshape(-1, 2):
            self._pending[int(row)] = frozen(arrays["factors"][end : end + rank])
            end += int(rank)
        inverse = arrays.get("inverse")
        self._sketcher = (
            None if inverse is None else Sketcher(np.asarray(inverse), dimension=self.dimension, seed=self.seed)
        )
        self._centroids = None
        self.version += 1

    def _settle(self) -> None:
        """Fix A and the calibration from the pilot clients, and sketch their factors."""
        if self._sketcher is not None or not self._pending:
            return
        rows, factors = list(self._pending), list(self._pending.values())
        reference = mean_moment(factors, np.full(len(factors), 1 / len(factors)))
        self._sketcher = Sketcher(
            regularised_inverse(reference, ridge=self.ridge), dimension=self.dimension, seed=self.seed
        )
        self._calibration = self._sketcher.calibrate(factors, seed=self.seed)
        self._known[rows] = False
        self._pending = {}
        self.put_sketches(np.array(rows), np.array([self._sketcher.sketch(factor) for factor in factors]))

    def _clusters(self, rows: IntArray, shares: FloatArray) -> Clusters:
        self._settle()
        points = self._sketches if rows.size == len(self) else self._sketches[rows]
        if self._centroids is None or self._changed > RECLUSTER_AT * rows.size:
            self._centroids = cluster(points, self.prototypes, seed=self.seed)
            self._labels[:] = -1
            self._changed = 0
        unsure = rows[self._labels[rows] < 0]
        if unsure.size:
            self._labels[unsure] = nearest_centroid(self._sketches[unsure], self._centroids)
        return Clusters(points, self._labels[rows], self._centroids, shares, self._calibration.scale)

    def _check_dense(self, what: str) -> None:
        if len(self) > DENSE_LIMIT:
            raise InputError(
                f"the {what} of {len(self)} clients does not fit a matrix (the limit is {DENSE_LIMIT}): ask "
                "best_prefix, which does not need it"
            )

    def _check_ridge(self, ridge: float) -> None:
        if ridge != self.ridge:
            raise InputError(
                f"this bank's sketches were made with ridge {self.ridge}, but {ridge} came: use the same in the scheme "
                "and in MomentBank.sketched"
            )
