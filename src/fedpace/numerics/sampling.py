"""Sampling probabilities that are optimal in closed form: with replacement against time, and independent draws.

**With replacement** (`best_sampling`). Luo, Xiao, Wang, Huang and Tassiulas (INFOCOM 2022, TMC 2024): K clients are
drawn with replacement from q, and the time to a target grows as

    g(q) = (sum_i q_i t_i) (sum_i a_i / q_i + c),    a_i = (w_i G_i)^2,

with delays t_i, shares w_i, gradient norms G_i, and c for what sampling does not change. The authors use a general
solver, but none is needed. At every stationary point on the simplex, q_i = s sqrt(a_i / (t_i - lambda)) for some lambda
below the smallest delay; with a floor under q, q_i is the larger of the two. The best q therefore lies on a
one-parameter curve, which is searched.

**Independent draws** (`optimal_inclusion`). Chen, Horvath and Richtarik, "Optimal Client Sampling for Federated
Learning" (TMLR 2022): if item i is kept with probability p_i and then weighted by 1 / p_i, the estimated sum has
variance sum_i u_i^2 (1 - p_i) / p_i, where u_i is the item's norm. Under sum p <= k, the minimum is at p_i = min(1, u_i
/ threshold) (their equation 7).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import FloatArray, at_least, delays, float_array
from fedpace._base.errors import InputError

COARSE, FINE, REFINEMENTS = 97, 33, 5
"""Points of the first search, points of each refinement between the neighbours of the best point, and refinements."""


def sampling_cost(q: FloatArray, a: FloatArray, delay: FloatArray, c: float) -> FloatArray:
    """Return g along the last axis; a client with a = 0 may have q = 0."""
    spread = np.divide(a, q, out=np.zeros(np.broadcast_shapes(q.shape, a.shape)), where=a > 0).sum(axis=-1)
    return np.asarray((q @ delay) * (spread + c))


def best_sampling(a: ArrayLike, delay: ArrayLike, *, c: float, floor: ArrayLike = 0.0) -> FloatArray:
    """Return the q on the simplex, at least `floor`, that minimises g.

    Args:
        a: (n,) at least 0, not all 0.
        delay: (n,) seconds.
        c: at least 0. With 0, q is proportional to sqrt(a / t). As c grows, the fastest client gets all that the floor
            leaves.
        floor: one number or one per client; sums to at most 1.
    """
    a_ = float_array(a, "a")
    t = delays(delay, count=a_.size)
    f = np.broadcast_to(np.asarray(floor, dtype=np.float64), a_.shape)
    at_least(c, 0, "c")
    if (a_ < 0).any() or not a_.any():
        raise InputError("a must be at least 0 and not all 0")
    if not ((f >= 0).all() and f.sum() <= 1 + 1e-9):
        raise InputError(f"the floor must be at least 0 and sum to at most 1, but it sums to {f.sum():g}")
    # Units do not change the minimiser; c scales with a.
    scale = float(a_.max())
    a_, c = a_ / scale, c / scale
    t = t / (float(t.max()) or 1.0)
    above_least = t - t.min()

    def curve(logs: FloatArray) -> FloatArray:
        return _filled(np.sqrt(a_ / (above_least + np.exp(logs)[:, None])), f)

    logs = np.linspace(np.log(1e-14), np.log(1e4), COARSE)
    for _ in range(REFINEMENTS):
        best = int(np.argmin(sampling_cost(curve(logs), a_, t, c)))
        logs = np.linspace(logs[max(best - 1, 0)], logs[min(best + 1, logs.size - 1)], FINE)
    q = curve(logs)
    return np.asarray(q[int(np.argmin(sampling_cost(q, a_, t, c)))])


def _filled(r: FloatArray, floor: FloatArray) -> FloatArray:
    """Return max(floor, s r), with s chosen per row so that the row sums to 1."""
    ratio = np.divide(floor, r, out=np.full(r.shape, np.inf), where=r > 0)
    order = np.argsort(ratio, axis=1)
    ratio = np.take_along_axis(ratio, order, axis=1)
    free = np.cumsum(np.take_along_axis(r, order, axis=1), axis=1)
    held = floor.sum() - np.cumsum(floor[order], axis=1)
    scale = np.divide(1 - held, free, out=np.zeros_like(free), where=free > 0)
    count = r.shape[1] - np.argmax((scale >= ratio)[:, ::-1], axis=1) - 1
    s = np.take_along_axis(scale, count[:, None], axis=1)
    q = np.maximum(floor, s * r)
    return np.asarray(q / q.sum(axis=1, keepdims=True))


def optimal_inclusion(norms: ArrayLike, k: float) -> FloatArray:
    """Return the p in [0, 1] with sum(p) <= k that minimises sum u^2 (1 - p) / p, in closed form.

    Items of norm 0 get p = 0, unless all norms are 0: then all items get the same p. The p sum to k, or to the number
    of items with a positive norm if that is smaller.
    """
    u = _norms(norms, k)
    positive = u > 0
    count = int(positive.sum())
    if count == 0:
        return np.full(u.size, min(1.0, k / u.size))
    if k >= count:
        return positive.astype(np.float64)
    ordered = np.sort(u[positive])
    budget = k + np.arange(1, count + 1) - count  # budget of the l smallest if the others have p = 1
    sums = np.cumsum(ordered)
    fits = (budget > 0) & (budget * ordered <= sums)
    last = int(np.flatnonzero(fits)[-1])
    return np.minimum(1.0, u * (float(budget[last]) / float(sums[last])))


def aggregated_inclusion(norms: ArrayLike, k: float, rounds: int) -> FloatArray:
    """Return nearly the same from sums alone, so that no client reveals its norm (AOCS, their algorithm 2).

    Starts from p = min(1, k u / sum u). At most `rounds` times, it redistributes what the items with p = 1 cannot use.
    """
    u = _norms(norms, k)
    total = float(u.sum())
    if total == 0:
        return np.full(u.size, min(1.0, k / u.size))
    p = np.minimum(1.0, k * (u / total))
    for _ in range(rounds):
        open_ = p < 1
        mass = float(p[open_].sum())
        if mass <= 0:
            break
        scale = (k - (u.size - int(open_.sum()))) / mass
        if scale <= 1:
            break
        p[open_] = np.minimum(1.0, scale * p[open_])
    return p


def _norms(norms: ArrayLike, k: float) -> FloatArray:
    u = float_array(norms, "norms")
    if u.size == 0 or (u < 0).any():
        raise InputError(f"expected norms of at least 0, one an item, but {u} came")
    if not (math.isfinite(k) and k > 0):
        raise InputError(f"k must be above 0, but {k!r} came")
    # Only ratios matter; without scaling, sums of huge norms overflow and sums of tiny ones underflow.
    largest = float(u.max())
    return u / largest if largest > 0 else u
