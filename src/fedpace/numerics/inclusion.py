"""Inclusion probabilities for independent draws that minimise the variance of a sum.

Chen, Horvath and Richtarik, "Optimal Client Sampling for Federated Learning" (TMLR 2022): if item i is kept with
probability p_i and then weighted by 1 / p_i, the estimated sum has variance sum_i u_i^2 (1 - p_i) / p_i, where u_i is
the item's norm. Under sum p <= k, the minimum is at p_i = min(1, u_i / threshold) (their equation 7).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import FloatArray, float_array
from fedpace._base.errors import InputError


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
