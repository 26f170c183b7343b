"""Minimises expected round time per progress, E[max delay of K draws] / (1 - bound), over distributions.

`steep_inverse` extends 1 / (1 - b) for solvers that step to b >= 1. `minimise_on_simplices` runs L-BFGS on logits, so
that every iterate is a distribution and no constraint is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedpace._base.checks import BoolArray, FloatArray
from fedpace._base.errors import InputError
from fedpace.numerics.order_stats import expected_max

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
