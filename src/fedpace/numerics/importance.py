"""The sampling distribution that trades the time per round against the number of rounds.

Luo, Xiao, Wang, Huang and Tassiulas (INFOCOM 2022, TMC 2024): K clients are drawn with replacement from q, and the time
to a target grows as

    g(q) = (sum_i q_i t_i) (sum_i a_i / q_i + c),    a_i = (w_i G_i)^2,

with delays t_i, shares w_i, gradient norms G_i, and c for what sampling does not change. The authors use a general
solver, but none is needed. At every stationary point on the simplex, q_i = s sqrt(a_i / (t_i - lambda)) for some lambda
below the smallest delay; with a floor under q, q_i is the larger of the two. The best q therefore lies on a
one-parameter curve, which is searched.
"""

from __future__ import annotations

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
