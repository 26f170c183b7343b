"""Adaptive client sampling: ApproxOptSampling with a constant c that two pilot phases measure.

Luo, Xiao, Wang, Huang and Tassiulas, "Tackling System and Statistical Heterogeneity for Federated Learning with
Adaptive Client Sampling" (INFOCOM 2022). After R rounds of draws from q, the excess loss is at most A_q / R, with A_q ~
M_q + c and M_q = sum_i (w_i G_i)^2 / q_i. Two pilots with different q measure rho = A_1 / A_2, which gives c = (M_1 -
rho M_2) / (rho - 1) (the paper's equation for uniform and weighted draws). Later rounds draw from the q that minimises
(sum q_i t_i)(M_q + c).

Where we depart, and why:
- The paper runs both pilots from the initial model and compares the rounds needed to reach given losses. A running
  federation has one model, so our pilots run one after the other. If excess = A / (R + R_0), then 1 / excess rises by 1
  / A per round from any start. The slopes of 1 / (loss - best_loss) therefore still give rho.
- With equal shares, uniform and weighted draws are the same. The second pilot then draws in proportion to w G.
- If the pilots give no estimate (noise, a rising loss, a negative value), the option `c` is used.
- G is the last norm instead of the largest, because the scheme keeps no state per client. G is divided by its root mean
  square.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.options import FINITE, AtLeast, Between
from fedpace.core.rounds import cohort_size
from fedpace.core.types import Cohort, Diagnostics, Need, Report, Scheme, View
from fedpace.numerics.sampling import sampling_cost
from fedpace.selectors._drawing import share_weights
from fedpace.selectors._importance import floors, gradient_norms, importance_cohort, solve


@dataclass(frozen=True)
class Pilots:
    """State: what the pilots measured."""

    losses: tuple[float, ...] = ()
    """Estimated loss of the shared model in each round of both pilots."""
    c: float = -1.0
    """The estimate of c; -1 = not computed yet, -2 = no estimate possible."""


@dataclass(frozen=True)
class AdaptiveSampling(Scheme):
    """Prefers fast clients and large gradients, self-tuned.

    Two pilot phases measure how strongly to prefer them.

    Args:
        k: draws per round; a client drawn twice trains once with double weight.
        pilot: rounds of each of the two pilots, at least 2.
        c: used if the pilots give no estimate.
        best_loss: the loss that training could reach; the losses of the pilots must stay above it.
        floor: smallest probability of a client, in units of 1 / clients.
        clip: largest weight; 0 = no limit. A limit lowers the variance and adds a bias.
    """

    name: ClassVar[str] = "adaptive-sampling"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY})
    not_with_sums: ClassVar[str] = (
        "it draws clients with replacement by the lengths of their updates, and a draw may have too few of them. Use "
        "random, or pace"
    )
    uses: ClassVar[frozenset[Need]] = frozenset({Need.LOSS, Need.UPDATE})
    """Losses and updates of participants, if the host reports them. Without losses, the option `c` is used."""

    k: Annotated[int, AtLeast(1)] = 10
    pilot: Annotated[int, AtLeast(2)] = 10
    c: Annotated[float, AtLeast(0)] = 5.0
    best_loss: Annotated[float, FINITE] = 0.0
    floor: Annotated[float, Between(0, 1, "(]")] = 0.1
    clip: Annotated[float, AtLeast(0)] = 0.0

    def init(self) -> Pilots:
        """Return the state before the first pilot."""
        return Pilots()

    def select(self, state: Pilots, view: View, rng: np.random.Generator) -> tuple[Cohort, Pilots]:
        """Draw uniformly, then from the second pilot's distribution, then from the optimum."""
        cohort_size(self.k, view, self.name)  # raises if k exceeds the fleet; draws with replacement need no cap
        rows = view.candidates
        share = share_weights(view, rows)
        if view.step < self.pilot:
            q, status, objective, c = _positive(share), "first pilot: uniform", None, None
        elif view.step < 2 * self.pilot:
            q, status, objective, c = self._second(view, rows, share), "second pilot", None, None
        else:
            if state.c == -1:
                state = self._estimated(state, view, rows, share)
            c = state.c if state.c >= 0 else self.c
            a = np.square(share * gradient_norms(view, rows, share))
            a = a if a.any() else np.square(share)
            q = solve(a, view.delay[rows], c, floors(share, self.floor), "exact", 0)
            objective = float(sampling_cost(q, a, view.delay[rows], c))
            status = "c estimated by the pilots" if state.c >= 0 else "the pilots gave no estimate of c"
        why = Diagnostics(objective=objective, status=status, facts={"c": c})
        return importance_cohort(view, rows, q, share, k=self.k, clip=self.clip, rng=rng, why=why), state

    def observe(self, state: Pilots, report: Report) -> Pilots:
        """During the pilots, record the estimated loss of the shared model, from the clients that were drawn."""
        known = report.finished & ~np.isnan(report.loss) & (report.weights > 0)
        if state.c != -1 or len(state.losses) >= 2 * self.pilot or not known.any():
            return state
        loss = float(report.weights[known] @ report.loss[known] / report.weights[known].sum())
        return replace(state, losses=(*state.losses, loss))

    def _second(self, view: View, rows: IntArray, share: FloatArray) -> FloatArray:
        q = share * gradient_norms(view, rows, share) if np.ptp(share) <= 1e-9 else share
        # The floor bounds the weights in the pilot too, and gives every client with a share a positive probability.
        q = np.maximum(q / q.sum() if q.any() else share, floors(share, self.floor))
        return np.asarray(q / q.sum())

    def _estimated(self, state: Pilots, view: View, rows: IntArray, share: FloatArray) -> Pilots:
        if len(state.losses) < 2 * self.pilot:
            return replace(state, c=-2.0)
        first, second = (np.array(part) for part in (state.losses[: self.pilot], state.losses[self.pilot :]))
        a = np.square(share * gradient_norms(view, rows, share))
        spread = [
            float((a[share > 0] / q[share > 0]).sum()) for q in (_positive(share), self._second(view, rows, share))
        ]
        c = estimate_c(first - self.best_loss, second - self.best_loss, spread[0], spread[1])
        return replace(state, c=-2.0 if c is None else c)


def estimate_c(first: FloatArray, second: FloatArray, spread_1: float, spread_2: float) -> float | None:
    """Return c from the excess losses of two pilots and their M_q; None if no estimate is possible."""
    if min(first.min(), second.min()) <= 0:
        return None
    slopes = [float(np.polyfit(np.arange(part.size), 1 / part, 1)[0]) for part in (first, second)]
    if min(slopes) <= 0:
        return None
    ratio = slopes[1] / slopes[0]  # A_1 / A_2
    if math.isclose(ratio, 1, rel_tol=1e-6):
        return None
    c = (spread_1 - ratio * spread_2) / (ratio - 1)
    return c if math.isfinite(c) and c >= 0 else None


def _positive(share: FloatArray) -> FloatArray:
    """Return the uniform distribution over clients with a positive share."""
    return np.asarray((share > 0) / (share > 0).sum())
