"""Whose data cannot be what it says: its update is far from what the others' updates make of its moment.

Schemes that match moments believe that clients with like moments send like updates: u_i = g + A p_i + e_i, with p_i the
point that the moment makes of a client. If so, the others' updates and points predict u_i from p_i, with an error of
known size. With K = P P', scaled to a mean of 1 on its diagonal, and errors of variance l, leaving client i out leaves

    r_i = |[W U]_i|^2 / W_ii^2,      v_i = 1 / W_ii,      W = (K + l I)^-1,

the squared error and its expectation, up to a factor that all clients share. So r_i / v_i is about the same for all
that are honest: for one whose data are like nobody's too, since of it little can be predicted, and v_i says so. Who
claims the mean moment of all claims to be predictable, and is not; who claims another's moment is predicted by that
one's update, and is not that either. Where moments say nothing of updates, l is large, nobody stands out, and nothing
can be gained by a false moment.

l is what makes the updates of most (`KEPT`) likeliest. Whoever stands out most is set aside, and the others are looked
at again without it, so that the one whose moment was copied is not taken for the one who copied it: the rest of the
fleet tells the two apart. Beyond the limit is what is more than `FACTOR` times the median and `SPREADS` robust standard
deviations of the logarithms above it; spread is measured below the median, where liars have nothing to gain.
"""

from __future__ import annotations

import math

import numpy as np

from fedpace._base.checks import BoolArray, FloatArray

ENOUGH = 12
"""Clients that trained from one model, below which nobody is said to stand out."""
TOGETHER = 256
"""Clients that are compared at once: more would take longer than they tell."""
FACTOR, SPREADS = 3.0, 3.5
"""See above."""
KEPT = 0.7
"""Of the clients, those that l is fitted to: the others may lie."""
NOISE = tuple(np.geomspace(0.1, 30.0, 9).tolist())
"""What l may be. Not less: clients whose moments agree by accident need not agree in all."""
COORDINATES = 256
"""Directions of their own that clients who are not believed are given at the most; beyond, some share one."""


def unlikely(updates: FloatArray, points: FloatArray) -> FloatArray:
    """(n,) how many times as far as is allowed an update is from what its client's point says; 0 = within the limit.

    Args:
        updates: (n, r) of clients that trained from one model.
        points: (n, d) what their moments say.
    """
    count = len(updates)
    times = np.zeros(count)
    parts = -(-count // TOGETHER)
    for part in range(parts):  # every so-many-th, so that neighbours in the roster are spread
        rows = np.arange(part, count, parts)
        if rows.size >= ENOUGH:
            times[rows] = _unlikely(updates[rows], points[rows])
    return times


def _unlikely(updates: FloatArray, points: FloatArray) -> FloatArray:
    count = len(updates)
    times = np.zeros(count)
    updates, points = updates - updates.mean(axis=0), points - points.mean(axis=0)
    gram = points @ points.T
    unit, length = float(np.trace(gram)) / count, float(np.square(updates).sum()) / count
    if not (0 < unit < math.inf and 0 < length < math.inf):
        return times
    values, vectors = np.linalg.eigh(gram / unit)
    values, turned = np.maximum(values, 0.0), vectors.T @ (updates / math.sqrt(length))
    noise = max(NOISE, key=lambda noise: _likelihood(values + noise, vectors, turned))
    inverse = (vectors / (values + noise)) @ vectors.T
    errors = vectors @ (turned / (values + noise)[:, None])
    left: BoolArray = np.ones(count, dtype=np.bool_)
    while 2 * int(left.sum()) > count:  # with fewer there is no majority to compare with
        ratio = np.square(errors).sum(axis=1) / np.where(left, inverse.diagonal(), 1.0)
        low, middle = np.quantile(np.log(np.maximum(ratio[left], 1e-300)), [0.25, 0.5])
        limit = math.exp(min(middle + max(math.log(FACTOR), SPREADS * (middle - low) / 0.6745), 700.0))
        worst = int(np.argmax(np.where(left, ratio, 0.0)))
        if ratio[worst] <= limit:
            return times
        times[worst], left[worst] = ratio[worst] / limit, False
        column = inverse[:, worst] / inverse[worst, worst]
        errors = errors - np.outer(column, errors[worst])
        inverse = inverse - np.outer(column, inverse[worst])
        errors[worst] = 0.0
    return np.zeros(count)


def _likelihood(spectrum: FloatArray, vectors: FloatArray, turned: FloatArray) -> float:
    """Return the logarithm of how likely most updates are, each given the others; up to a constant."""
    weight = np.square(vectors) @ (1.0 / spectrum)
    ratio = np.square(vectors @ (turned / spectrum[:, None])).sum(axis=1) / weight
    most = np.argsort(ratio, kind="stable")[: math.ceil(KEPT * ratio.size)]
    return float(np.log(weight[most]).mean() - np.log(max(float(ratio[most].mean()), 1e-300)))


def with_own_coordinates(points: FloatArray, doubted: BoolArray, shares: FloatArray) -> FloatArray:
    """Return points in which clients that are not believed are as far from the population as most, each on its own.

    Args:
        points: (n, d) relative to the population of those that are believed; NaN rows = unknown.
        doubted: (n,) who is not.
        shares: (n,) of the clients in the objective.
    """
    known: BoolArray = np.asarray(~np.isnan(points).any(axis=1))
    told, rows = np.flatnonzero(known & ~doubted), np.flatnonzero(known & doubted)
    typical = float(np.square(points[told]).sum(axis=1).mean()) if told.size else 1.0
    own = np.zeros((len(points), min(rows.size, COORDINATES)))
    own[rows, np.arange(rows.size) % COORDINATES] = math.sqrt(typical)
    total = float(shares[known].sum())
    own -= shares[known] @ own[known] / total if total > 0 else 0.0
    believed = np.where(doubted[:, None] & known[:, None], 0.0, points)
    return np.concatenate([believed, np.where(known[:, None], own, math.nan)], axis=1)
