"""Prefix scan over clusters, for fleets too large for a pairwise matrix (see `fedpace.numerics.prefix`).

Columns are clusters of clients; rows are clients sorted by delay. A client's distance to an average member of cluster c
is D(i, c) = scale sqrt(|s_i - mu_c|^2 + spread_c): the squared distance of its sketch to the centroid plus the
cluster's mean square. A chosen client represents itself, at distance 0. So

    h(S) = sum_c (share of c that is not chosen) min_{i in S} D(i, c).

The scan takes O(n k) time for n clients and k clusters, in bounded memory, and stops as soon as a delay exceeds the
best objective. It exchanges min and mean within a cluster, so that it overestimates h.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.errors import InfeasibleError, InputError
from fedpace.numerics.prefix import PrefixSolution

PORTION = 512


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
    for start in range(0, len(order), PORTION):
        rows = order[start : start + PORTION]
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
    for start in range(0, len(members), PORTION):
        reach = distances(fleet, members[start : start + PORTION], spread)
        place = reach.argmin(axis=0)
        value = reach[place, np.arange(len(place))]
        closer = value < nearest
        nearest[closer], proxy[closer] = value[closer], start + place[closer]
    own = fleet.shares[members]
    left = fleet.mass() - np.bincount(fleet.labels[members], own, len(spread))
    return own + np.bincount(proxy, np.maximum(left, 0.0), len(members))
