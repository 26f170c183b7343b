"""K distributions over clients, one draw from each, so that client i is drawn K w_i times on average.

Fraboni, Vidal, Kameni and Lorenzi, "Clustered Sampling" (ICML 2021). An urn holds a mass of 1; client i brings K w_i
and may be spread over several urns. Algorithm 1 fills the urns with the clients by size. Algorithm 2 gives similar
clients the same urn, so that one draw speaks for all of them.
"""

from __future__ import annotations

import math

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.errors import InputError

FULL = 1e-12
"""Mass below which an urn or a client counts as used up: rounding, not a part of anybody."""


def urns_by_size(share: FloatArray, k: int) -> FloatArray:
    """Return (k, n): row j is a distribution, and column i sums to k share_i. Algorithm 1, the largest share first."""
    order = np.argsort(-share, kind="stable")
    urns = np.zeros((k, share.size))
    urns[:, order] = _poured(k * share[order], k)
    return _exact(urns, share)


def urns_by_cluster(share: FloatArray, k: int, distance: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return the same, with clients that are near one another in one urn. Algorithm 2.

    Args:
        share: (n,) sums to 1.
        k: urns.
        distance: condensed, as `scipy.spatial.distance.pdist` gives it.
        rng: shuffles the clients of the clusters that got no urn of their own before they fill the gaps.

    A client with k share >= 1 fills whole urns alone first; only the rest of it is clustered. The released code does
    not, and is biased then. The tree is cut top-down: a branch whose mass fits into an urn is a cluster.
    """
    mass = k * share
    whole = np.floor(mass + FULL)
    rest = np.where(mass - whole > FULL, mass - whole, 0.0)
    urns = np.zeros((k, share.size))
    alone = np.repeat(np.arange(share.size), whole.astype(np.int64))
    urns[np.arange(alone.size), alone] = 1.0
    left = k - alone.size
    if left == 0:
        return _exact(urns, share)
    clusters = [np.array(c) for c in _clusters(rest, distance) if rest[c].sum() > 0]
    clusters.sort(key=lambda cluster: -float(rest[cluster].sum()))
    for urn, cluster in enumerate(clusters[:left], start=alone.size):
        urns[urn, cluster] = rest[cluster]
    others = rng.permutation(np.concatenate([np.zeros(0, np.int64), *clusters[left:]]))
    gaps = 1.0 - urns[alone.size :].sum(axis=1)
    urns[alone.size :, others] += _poured(rest[others], left, capacity=gaps)
    return _exact(urns, share)


def _clusters(mass: FloatArray, distance: FloatArray) -> list[list[int]]:
    """Cut the Ward tree into branches of mass at most 1."""
    if mass.size == 1:
        return [[0]]
    from scipy.cluster.hierarchy import linkage

    tree = linkage(distance, method="ward")
    count = mass.size
    weight = np.concatenate([mass, np.zeros(count - 1)])
    for node, (left, right) in enumerate(tree[:, :2].astype(np.int64), start=count):
        weight[node] = weight[left] + weight[right]
    clusters: list[list[int]] = []
    stack = [2 * count - 2]
    while stack:
        node = stack.pop()
        if node < count or weight[node] <= 1.0 + FULL:
            clusters.append(_leaves(tree, node, count))
        else:
            stack += [int(tree[node - count, 1]), int(tree[node - count, 0])]
    return clusters


def _leaves(tree: FloatArray, node: int, count: int) -> list[int]:
    leaves, stack = [], [node]
    while stack:
        top = stack.pop()
        if top < count:
            leaves.append(top)
        else:
            stack += [int(tree[top - count, 1]), int(tree[top - count, 0])]
    return leaves


def _poured(mass: FloatArray, k: int, capacity: FloatArray | None = None) -> FloatArray:
    """Pour client after client into urn after urn: the overlaps of two subdivisions of one line."""
    filled = np.arange(1.0, k + 1) if capacity is None else np.cumsum(np.clip(capacity, 0.0, None))
    used = np.cumsum(mass)
    high = np.minimum(filled[:, None], used[None, :])
    low = np.maximum((np.concatenate([[0.0], filled[:-1]]))[:, None], np.concatenate([[0.0], used[:-1]])[None, :])
    return np.asarray(np.clip(high - low, 0.0, None))


def _exact(urns: FloatArray, share: FloatArray) -> FloatArray:
    """Check the two sums; rounding of the urns' sums is taken out, as drawing needs it."""
    if not (np.abs(urns.sum(axis=1) - 1) < 1e-6).all() or not np.allclose(
        urns.sum(axis=0), len(urns) * share, atol=1e-6
    ):
        raise InputError(f"expected shares that sum to 1, but they sum to {math.fsum(share)}")
    return np.asarray(urns / urns.sum(axis=1, keepdims=True))


def draw_from(urns: FloatArray, rng: np.random.Generator) -> IntArray:
    """Draw one column from each row."""
    level = rng.random(len(urns))[:, None]
    picks = (np.cumsum(urns, axis=1) <= level).sum(axis=1)
    # Rounding may leave the last cumulative sum below the level: the last client with mass is meant then.
    last = urns.shape[1] - 1 - np.argmax(urns[:, ::-1] > 0, axis=1)
    return np.asarray(np.minimum(picks, last))
