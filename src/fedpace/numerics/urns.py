"""Urns of clustered sampling: K distributions over clients, from each of which one client is drawn.

Fraboni, Vidal, Kameni and Lorenzi, "Clustered Sampling" (ICML 2021). On average, client i is drawn K w_i times. An urn
holds a mass of 1. Client i has mass K w_i, which may be spread over several urns. Algorithm 1 fills the urns with
clients by size. Algorithm 2 puts similar clients into the same urn, so that one draw represents all of them.
"""

from __future__ import annotations

import math

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.errors import InputError

FULL = 1e-12
"""Mass below which an urn counts as full or a client as used up, to absorb rounding errors."""


def urns_by_size(share: FloatArray, k: int) -> FloatArray:
    """Return (k, n) urns by Algorithm 1, largest share first: rows sum to 1, and column i sums to k share_i."""
    order = np.argsort(-share, kind="stable")
    urns = np.zeros((k, share.size))
    urns[:, order] = _poured(k * share[order], k)
    return _exact(urns, share)


def urns_by_cluster(share: FloatArray, k: int, distance: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return (k, n) urns by Algorithm 2, with similar clients in the same urn.

    Args:
        share: (n,) sums to 1.
        k: number of urns.
        distance: condensed distances, as from `scipy.spatial.distance.pdist`.
        rng: shuffles the clients of clusters without an urn before they fill the gaps.

    A client with k share >= 1 first fills whole urns alone, and only the rest of its mass is clustered. The released
    code does not do this and is biased then. The tree is cut from the top: a branch whose mass fits into an urn is a
    cluster.
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
    """Return the branches of the Ward tree with mass at most 1."""
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
    """Return (urns, clients) masses: the clients are poured one after the other into one urn after the other."""
    filled = np.arange(1.0, k + 1) if capacity is None else np.cumsum(np.clip(capacity, 0.0, None))
    used = np.cumsum(mass)
    high = np.minimum(filled[:, None], used[None, :])
    low = np.maximum((np.concatenate([[0.0], filled[:-1]]))[:, None], np.concatenate([[0.0], used[:-1]])[None, :])
    return np.asarray(np.clip(high - low, 0.0, None))


def _exact(urns: FloatArray, share: FloatArray) -> FloatArray:
    """Return the urns, normalised to remove rounding errors; raise InputError if their sums are wrong."""
    if not (np.abs(urns.sum(axis=1) - 1) < 1e-6).all() or not np.allclose(
        urns.sum(axis=0), len(urns) * share, atol=1e-6
    ):
        raise InputError(f"expected shares that sum to 1, but they sum to {math.fsum(share)}")
    return np.asarray(urns / urns.sum(axis=1, keepdims=True))


def draw_from(urns: FloatArray, rng: np.random.Generator) -> IntArray:
    """Return one column drawn from each row."""
    level = rng.random(len(urns))[:, None]
    picks = (np.cumsum(urns, axis=1) <= level).sum(axis=1)
    # Rounding may leave the last cumulative sum below the level: then take the last client with mass.
    last = urns.shape[1] - 1 - np.argmax(urns[:, ::-1] > 0, axis=1)
    return np.asarray(np.minimum(picks, last))
