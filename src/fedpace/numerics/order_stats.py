"""Expected round time of K clients drawn with replacement (the DelayHet paper, Lemma 3 and Remark 3).

With ascending delays and P_i = p_1 + ... + p_i, E[max] = sum_i (P_i^K - P_{i-1}^K) tau_i. In the paper's Algorithm 3
both sums run to i, which makes the objective 0 (docs/errata.md, A5). We sum by parts,

    E[max] = tau_m - sum_{i<m} P_i^K (tau_{i+1} - tau_i),

so that the order of clients with equal delay affects neither the value nor the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import FloatArray, delays, float_array, whole
from fedpace._base.errors import InputError


@dataclass(frozen=True, eq=False)
class ExpectedMax:
    """The expected largest delay of k draws, and its gradient."""

    value: float
    gradient: FloatArray
    """(n,) as in `expected_max`: only differences between clients are meaningful."""


def expected_max(p: ArrayLike, delay: ArrayLike, k: int) -> ExpectedMax:
    """Return E[max of k draws with replacement from p] and its gradient.

    The last cumulative sum is fixed at 1, so the gradient is d/dp_l = -k sum_{i>=l, i<m} P_i^(k-1) (tau_{i+1} - tau_i).
    Every p_l is free, and the slowest client takes the rest: its own entry is 0. Along directions that stay on the
    simplex (entries summing to 0), this is the exact derivative. The component along (1, ..., 1) is a convention.
    """
    tau = delays(delay)
    probability = float_array(p, "probabilities")
    if probability.size != tau.size:
        raise InputError(f"expected {tau.size} probabilities, one a delay, but {probability.size} came")
    whole(k, 1, "k")
    total = float(probability.sum())
    # Solvers leave the simplex slightly; more than rounding is an error of the caller.
    if probability.min() < -1e-6 or abs(total - 1) > 1e-6:
        raise InputError(
            f"probabilities must be at least 0 and sum to 1, but the least is {probability.min():g} "
            f"and the sum is {total:g}"
        )
    order = np.argsort(tau, kind="stable")
    steps = np.diff(tau[order])
    below = np.clip(np.cumsum(probability[order])[:-1], 0.0, 1.0)
    value = float(tau[order[-1]] - below**k @ steps)
    gradient = np.zeros(tau.size)
    gradient[order[:-1]] = -np.cumsum((k * below ** (k - 1) * steps)[::-1])[::-1]
    return ExpectedMax(value=value, gradient=gradient)
