"""SketchedBank: a moment bank for up to millions of clients, with sketches instead of factors (ours, not in the paper).

**Sketches.** A client has 64 numbers instead of a factor. Coordinate k of client i's sketch is a sum of a'W_i b over
`PROBES` pairs of Gaussian vectors a and b. Squared distances between sketches are therefore unbiased estimates of |W_i
- W_j|_F^2. This is a Johnson-Lindenstrauss map with rank-one probes, which costs O(r d) per factor instead of O(d^2). B
is the spectral norm, which is smaller, so the bank measures the ratio on pairs of pilot clients and multiplies by it. A
sketch depends on A, so A comes from the first `pilot` clients and is then frozen (docs/errata.md, C4).

**Prefix scan.** `best_prefix` works as in `MomentBank`, but approximately: it compares clients with a few thousand
clusters instead of with each other (clustering needs faiss, extra `scale`). Columns are clusters; rows are clients
sorted by delay. A client's distance to an average member of cluster c is D(i, c) = scale sqrt(|s_i - mu_c|^2 +
spread_c): the squared distance of its sketch to the centroid plus the cluster's mean square. A chosen client represents
itself, at distance 0. So

    h(S) = sum_c (share of c that is not chosen) min_{i in S} D(i, c).

The scan takes O(n k) time for n clients and k clusters, in bounded memory, and stops as soon as a delay exceeds the
best objective. It exchanges min and mean within a cluster, so that it overestimates h. benchmarks/scale.py measures the
loss from the approximation.

For up to `MAX_DENSE_CLIENTS` clients, the bank also estimates `heterogeneity` from sketch distances, so that every
scheme runs on it unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace._base.checks import BoolArray, FloatArray, IntArray, at_least, float_array, frozen, shares_among
from fedpace._base.checks import delays as checked_delays
from fedpace._base.checks import shares as checked_shares
from fedpace._base.errors import InfeasibleError, InputError
from fedpace._base.rng import stream
from fedpace.moments.bank import RescaledPrefix, check_matrix, checked_moment, rescale_factor
from fedpace.numerics.heterogeneity import mean_moment, regularised_inverse
from fedpace.numerics.prefix import PrefixSolution, candidate_rows
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


class SketchStore:
    """An array of sketches that clients can join and leave; `version` grows with every change."""

    def __init__(self, count: int, dimension: int) -> None:
        self.dimension = dimension
        self.version = 0
        self._sketches: NDArray[Any] = np.zeros((0, dimension), dtype=np.float32)
        self._known: BoolArray = np.zeros(0, dtype=np.bool_)
        self._labels: IntArray = np.zeros(0, dtype=np.int64)  # cluster of each row, -1 = none yet
        self._changed = 0  # sketches that changed since the clusters were made
        self.append(count)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._known)

    @property
    def known(self) -> BoolArray:
        """(n,) True for clients with a moment."""
        return frozen(self._known, np.bool_)

    def append(self, count: int) -> None:
        """Add rows for clients that joined."""
        at_least(count, 0, "the number of rows to add")
        if count:
            self._sketches = np.vstack([self._sketches, np.zeros((count, self.dimension), dtype=np.float32)])
            self._known = np.append(self._known, np.zeros(count, dtype=np.bool_))
            self._labels = np.append(self._labels, np.full(count, -1, dtype=np.int64))
            self.version += 1

    def put_sketches(self, rows: ArrayLike, sketches: ArrayLike) -> None:
        """Store sketches that were computed elsewhere; all must come from the same `Sketcher`."""
        places = np.asarray(rows, dtype=np.int64)
        values = np.asarray(sketches, dtype=np.float32)
        if values.shape != (places.size, self.dimension):
            raise InputError(f"expected {places.size} sketches of {self.dimension} numbers, but {values.shape} came")
        if not np.isfinite(values).all():
            bad = int(places[np.flatnonzero(~np.isfinite(values).all(axis=1))[0]])
            raise InputError(f"sketches must be finite, but that of client {bad} is not")
        if places.size and not (places.min() >= 0 and places.max() < len(self)):
            raise InputError(f"expected rows from 0 to {len(self) - 1}, but {places.min()} to {places.max()} came")
        fresh = ~self._known[places] | (self._sketches[places] != values).any(axis=1)
        if fresh.any():
            self._sketches[places], self._known[places] = values, True
            self._labels[places[fresh]] = -1
            self._changed += int(fresh.sum())
            self.version += 1

    def _drop(self, rows: IntArray) -> IntArray:
        """Remove rows, and return them sorted."""
        gone = np.unique([self._row(int(row)) for row in np.asarray(rows).ravel()]).astype(np.int64)
        if gone.size:
            self._sketches = np.delete(self._sketches, gone, axis=0)
            self._known, self._labels = np.delete(self._known, gone), np.delete(self._labels, gone)
            self.version += 1
        return gone

    def _row(self, row: int) -> int:
        if not 0 <= row < len(self):
            raise InputError(f"expected a row from 0 to {len(self) - 1}, but {row!r} came")
        return int(row)


SCAN_BLOCK = 512


@dataclass(frozen=True, eq=False)
class Clusters:
    """Sketches of a fleet, grouped into a few thousand clusters."""

    sketches: NDArray[Any]
    """(n, s) float32, one row per client."""
    labels: IntArray
    """(n,) cluster of each client."""
    centroids: NDArray[Any]
    """(k, s) float32."""
    shares: FloatArray
    """(n,) weights in the objective, summing to 1."""
    scale: float
    """Factor from sketch distance to B."""

    def spread(self) -> NDArray[Any]:
        """(k,) share-weighted mean squared distance of members to their centroid."""
        offsets = np.empty(len(self.labels))
        for start in range(0, len(offsets), 100_000):
            part = slice(start, start + 100_000)
            offsets[part] = ((self.sketches[part] - self.centroids[self.labels[part]]) ** 2).sum(axis=1)
        total = np.bincount(self.labels, weights=self.shares * offsets, minlength=len(self.centroids))
        mass = self.mass()
        return np.divide(total, mass, out=np.zeros_like(total), where=mass > 0).astype(np.float32)

    def mass(self) -> FloatArray:
        """(k,) share of each cluster."""
        mass = np.bincount(self.labels, weights=self.shares, minlength=len(self.centroids))
        return np.asarray(mass, dtype=np.float64)


def scan_clusters(
    fleet: Clusters, delay: FloatArray, candidates: IntArray, *, max_clients: int | None = None
) -> PrefixSolution:
    """Return the best prefix of the candidates; clients with equal delay enter together."""
    if max_clients is not None and max_clients < 1:
        raise InputError(f"max_clients must be at least 1, but {max_clients!r} came")
    order = candidates[np.argsort(delay[candidates], kind="stable")][:max_clients]
    tau = delay[order]
    last_of_group = np.append(tau[1:] != tau[:-1], True)
    best, length, h_best, least = math.inf, 0, math.inf, math.inf
    for start, nearest, h in _prefixes(fleet, order):
        stop = start + len(h)
        least = min(least, float(h.min()))
        margin = 1.0 - 2.0 * h * h
        usable = last_of_group[start:stop] & (margin > 0)
        cost = np.divide(tau[start:stop], margin, out=np.full(len(h), math.inf), where=usable)
        place = int(np.argmin(cost))
        if cost[place] < best:
            best, length, h_best = float(cost[place]), start + place + 1, float(h[place])
        if stop < len(order) and tau[stop] >= best:
            break
        del nearest
    if not length:
        raise InfeasibleError(
            f"no set is feasible: 2 h^2 must be below 1, but with {len(order)} candidates h is about {least:.4g}; "
            "add candidates, raise the ridge, or rescale B by a target below 0.7071"
        )
    members = order[:length]
    return PrefixSolution.of_set(members, _weights(fleet, members), delay, h_best)


def distances(fleet: Clusters, rows: IntArray, spread: NDArray[Any]) -> NDArray[Any]:
    """Return D(i, c) from the clients `rows` to all clusters, (b, k) float32."""
    chosen = fleet.sketches[rows]
    squares: NDArray[Any] = chosen @ fleet.centroids.T
    squares *= -2.0
    squares += (chosen * chosen).sum(axis=1)[:, None]
    squares += (fleet.centroids * fleet.centroids).sum(axis=1)
    np.maximum(squares, 0.0, out=squares)
    squares += spread
    np.sqrt(squares, out=squares)
    squares *= np.float32(fleet.scale)
    return squares


def _prefixes(fleet: Clusters, order: IntArray) -> Iterator[tuple[int, NDArray[Any], FloatArray]]:
    """Yield blocks of prefixes: start, nearest distances after each prefix, and h of each prefix."""
    spread = fleet.spread()
    remaining = fleet.mass()
    nearest = np.full(len(spread), np.inf, dtype=np.float32)
    for start in range(0, len(order), SCAN_BLOCK):
        rows = order[start : start + SCAN_BLOCK]
        closest = distances(fleet, rows, spread)
        np.minimum(closest[0], nearest, out=closest[0])
        np.minimum.accumulate(closest, axis=0, out=closest)
        # A chosen client represents itself: its share leaves its cluster, for this and all later prefixes.
        own = closest[:, fleet.labels[rows]] * fleet.shares[rows]
        h = closest @ remaining - np.tril(own).sum(axis=1)
        yield start, closest, np.maximum(h, 0.0)
        nearest = closest[-1].copy()
        remaining = remaining - np.bincount(fleet.labels[rows], fleet.shares[rows], len(remaining))


def _weights(fleet: Clusters, members: IntArray) -> FloatArray:
    """Return each member's own share plus the rest of the clusters nearest to it; ties go to the fastest member."""
    spread = fleet.spread()
    nearest = np.full(len(spread), np.inf, dtype=np.float32)
    proxy = np.zeros(len(spread), dtype=np.int64)
    for start in range(0, len(members), SCAN_BLOCK):
        reach = distances(fleet, members[start : start + SCAN_BLOCK], spread)
        place = reach.argmin(axis=0)
        value = reach[place, np.arange(len(place))]
        closer = value < nearest
        nearest[closer], proxy[closer] = value[closer], start + place[closer]
    own = fleet.shares[members]
    left = fleet.mass() - np.bincount(fleet.labels[members], own, len(spread))
    return own + np.bincount(proxy, np.maximum(left, 0.0), len(members))


MAX_DENSE_CLIENTS = 5000
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
        self._fix_reference()
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
                self._fix_reference()
        else:
            self.put_sketches(np.array([row]), self._sketcher.sketch(matrix)[None, :])

    def heterogeneity(self, *, ridge: float, shares: ArrayLike | None = None) -> FloatArray:
        """(n, n) estimate of B from sketch distances, for up to `MAX_DENSE_CLIENTS`; NaN for unknown clients."""
        self._check_dense("heterogeneity")
        rows = np.flatnonzero(self._known)
        result = np.full((len(self), len(self)), np.nan)
        result[np.ix_(rows, rows)] = self.known_heterogeneity(ridge=ridge, shares=shares)
        return frozen(result)

    def known_heterogeneity(self, *, ridge: float, shares: ArrayLike | None = None) -> FloatArray:
        """(m, m) estimate of B among the m known clients; use it if few of many clients are known."""
        self._check_ridge(ridge)
        self._fix_reference()
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
        self._fix_reference()
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
        scale = rescale_factor(largest, target)
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

    def _fix_reference(self) -> None:
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
        self._fix_reference()
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
        if len(self) > MAX_DENSE_CLIENTS:
            raise InputError(
                f"the {what} of {len(self)} clients does not fit a matrix (the limit is {MAX_DENSE_CLIENTS}): ask "
                "best_prefix, which does not need it"
            )

    def _check_ridge(self, ridge: float) -> None:
        if ridge != self.ridge:
            raise InputError(
                f"this bank's sketches were made with ridge {self.ridge}, but {ridge} came: use the same in the scheme "
                "and in MomentBank.sketched"
            )
