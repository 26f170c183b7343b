"""Expected round time of K clients drawn with replacement, and distributions that minimise it per progress.

The DelayHet paper, Lemma 3 and Remark 3: with ascending delays and P_i = p_1 + ... + p_i, E[max] = sum_i (P_i^K -
P_{i-1}^K) tau_i. In the paper's Algorithm 3 both sums run to i, which makes the objective 0 (docs/errata.md, A5). We
sum by parts,

    E[max] = tau_m - sum_{i<m} P_i^K (tau_{i+1} - tau_i),

so that the order of clients with equal delay affects neither the value nor the gradient.

The objective is E[max delay of K draws] / (1 - bound). `steep_inverse` extends 1 / (1 - b) for solvers that step to
b >= 1. `minimise_on_simplices` runs L-BFGS on logits, so that every iterate is a distribution and no constraint is
needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import BoolArray, FloatArray, delays, float_array, whole
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


MARGIN = 0.05
"""If 1 - bound is smaller than this, 1 / (1 - bound) continues along its tangent."""

FIRST_STEPS, POLISHED = 20, 3
"""Iterations for every start, and number of starts that continue."""
DIMMEST = 1e-12
"""Smallest probability in a start: a logit of minus infinity could never recover."""


def steep_inverse(bound: float) -> tuple[float, float]:
    """Return 1 / (1 - bound) and its derivative; beyond 1 - MARGIN, the tangent: steep, finite, and increasing."""
    if bound <= 1 - MARGIN:
        return 1 / (1 - bound), 1 / (1 - bound) ** 2
    slope = 1 / MARGIN**2
    return 1 / MARGIN + (bound - (1 - MARGIN)) * slope, slope


@dataclass(frozen=True, eq=False)
class MomentRatio:
    """E[max delay of K draws from p] / (1 - B_p), with the exact bias and variance of moments.

        B_p = (p - w)'G(p - w) + (p.diag(G) - p'Gp) / K

    The mean of K draws differs from the population by p - w on average, and its variance is 1/K of the variance of one
    draw. G measures both in the norm of `whitened_gram`.
    """

    gram: FloatArray
    """(n, n) G between the candidates."""
    pull: FloatArray
    """(n,) G w over the whole population."""
    offset: float
    """w'Gw."""
    delay: FloatArray
    draws: int

    def bound(self, p: FloatArray) -> float:
        """Return B_p."""
        inside = float(p @ self.gram @ p)
        variance = float(p @ np.diag(self.gram)) - inside
        return inside - 2 * float(p @ self.pull) + self.offset + variance / self.draws

    def value_and_gradient(self, p: FloatArray) -> tuple[float, FloatArray]:
        """Return the ratio and its gradient along the simplex."""
        top = expected_max(p, self.delay, self.draws)
        inverse, slope = steep_inverse(self.bound(p))
        toward = self.gram @ p
        bound_gradient = 2 * (toward - self.pull) + (np.diag(self.gram) - 2 * toward) / self.draws
        return top.value * inverse, top.gradient * inverse + top.value * slope * bound_gradient


@dataclass(frozen=True, eq=False)
class TransportRatio:
    """E[max delay of K draws from p] / (1 - B_p), with the bias bounded by the transport cost from p to w.

        B_p = 2 (OT(p, w)^2 + p'B~p / (2K)),     B~ the elementwise squares of the ground cost B

    The argument is not p but the transport plan S. Column j of S says which candidates represent member j of the
    population, and in which proportions. Then p = S w, and the plan costs T = sum_ij w_j S_ij B_ij >= OT(p, w). The
    ratio grows with T, so its minimum over plans is its minimum over p with T = OT(p, w). The transport problem is thus
    solved at the same time.
    """

    cost: FloatArray
    """(n, m) B between the candidates and the population."""
    squares: FloatArray
    """(n, n) B~ between the candidates."""
    share: FloatArray
    """(m,) w, the shares of the population."""
    delay: FloatArray
    draws: int

    def drawn(self, plan: FloatArray) -> FloatArray:
        """(n,) the distribution p of a plan S."""
        return np.asarray(plan @ self.share)

    def carried(self, plan: FloatArray) -> float:
        """Return the cost T of a plan, which is at least OT(p, w)."""
        return float(np.einsum("ij,ij,j->", plan, self.cost, self.share))

    def bound(self, p: FloatArray, transport: float) -> float:
        """Return B_p, given the transport cost from p to w."""
        return 2 * (transport**2 + float(p @ self.squares @ p) / (2 * self.draws))

    def value_and_gradient(self, plan: FloatArray) -> tuple[float, FloatArray]:
        """Return the ratio and its gradient with respect to S, along the simplices of its columns."""
        p, carried = self.drawn(plan), self.carried(plan)
        top = expected_max(p / p.sum(), self.delay, self.draws)
        inverse, slope = steep_inverse(self.bound(p, carried))
        by_p = top.gradient * inverse + top.value * slope * 2 * (self.squares @ p) / self.draws
        by_cost = top.value * slope * 4 * carried
        return top.value * inverse, (by_p[:, None] + by_cost * self.cost) * self.share


def minimise_on_simplices(
    value_and_gradient: Callable[[FloatArray], tuple[float, FloatArray]],
    starts: Sequence[FloatArray],
    *,
    max_iter: int = 300,
) -> tuple[FloatArray, float]:
    """Return the best distribution found from several starts, and its value.

    An argument is (n,), one distribution, or (n, m), one per column. The solver is L-BFGS on logits: with x =
    softmax(t) per column, df/dt = x * (g - x.g), which ignores the component of the gradient g along (1, ..., 1).
    Entries that are 0 in a start practically stay 0. All starts get a few steps, and the most promising ones continue.
    """
    from scipy.optimize import minimize

    if not starts:
        raise InputError("minimise_on_simplices needs at least one start, but none came")
    shape = starts[0].shape

    def by_logits(logits: FloatArray) -> tuple[float, FloatArray]:
        x = softmax(logits.reshape(shape))
        value, gradient = value_and_gradient(x)
        return value, (x * (gradient - (x * gradient).sum(axis=0))).ravel()

    def improved(logits: FloatArray, steps: int) -> tuple[float, FloatArray]:
        options = {"maxiter": steps, "maxcor": 20, "ftol": 1e-12, "gtol": 1e-9}
        found = minimize(by_logits, logits, jac=True, method="L-BFGS-B", options=options)
        return float(found.fun), found.x

    tried = [improved(np.log(np.maximum(start, DIMMEST)).ravel(), FIRST_STEPS) for start in starts]
    tried.sort(key=lambda pair: pair[0])
    value, logits = min((improved(x, max_iter) for _, x in tried[:POLISHED]), key=lambda pair: pair[0])
    return softmax(logits.reshape(shape)), value


def prefix_starts(delay: FloatArray) -> list[BoolArray]:
    """Return masks of the fastest clients: all of them, two thirds of them, and so on down to one.

    The expected maximum hardly depends on a client that is drawn rarely, so the ratio has a local minimum for every
    client that could be the slowest. The best distribution has some slowest client, so the prefixes are tried in turn
    as starts.
    """
    order = np.argsort(delay, kind="stable")
    masks, size = [], delay.size
    while True:
        mask = np.zeros(delay.size, dtype=np.bool_)
        mask[order[:size]] = True
        masks.append(mask)
        if size == 1:
            return masks
        size = min(size - 1, -(-2 * size // 3))


def softmax(logits: FloatArray) -> FloatArray:
    """Return the softmax of logits, per column."""
    weights = np.exp(logits - logits.max(axis=0))
    return np.asarray(weights / weights.sum(axis=0))
