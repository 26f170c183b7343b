"""Adaptive client sampling: ApproxOptSampling with its constant measured in two pilot phases.

Luo, Xiao, Wang, Huang and Tassiulas, "Tackling System and Statistical Heterogeneity for Federated Learning with
Adaptive Client Sampling" (INFOCOM 2022). After R rounds by q the excess loss is at most A_q / R, A_q ~ M_q + c with
M_q = sum_i (w_i G_i)^2 / q_i. Two pilots with different q show A_1 / A_2, and so c = (M_1 - rho M_2) / (rho - 1) with
rho = A_1 / A_2 (their equation for uniform and weighted draws). Then q minimises (sum q_i t_i)(M_q + c).

Where we depart, and why:
- the paper runs both pilots from the initial model and compares the rounds to given losses. A running federation has
  one model: our pilots follow each other. If excess = A / (R + R_0), then 1 / excess rises by 1 / A in each round
  wherever one starts, so the slopes of 1 / (loss - best_loss) give rho all the same;
- with equal shares, uniform and weighted draws are one: the second pilot then draws by w G ("statistical");
- where the pilots tell nothing (noise, a rising loss, a negative estimate), `c` is used as it is;
- G is the last norm, not the largest: nothing is kept per client. It is measured in units of its root mean square.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedpace._base.checks import FloatArray, IntArray, at_least
from fedpace._base.errors import InputError
from fedpace.core.cohorts import cohort_size
from fedpace.core.types import Cohort, Diagnostics, Need, Report, Scheme, View
from fedpace.numerics.importance import sampling_cost
from fedpace.selectors._drawing import share_weights
from fedpace.selectors._importance import check_options, floors, gradient_norms, importance_cohort, solve


@dataclass(frozen=True)
class Pilots:
    """What the pilots saw."""

    losses: tuple[float, ...] = ()
    """Estimated loss of the shared model at each round of both pilots."""
    c: float = -1.0
    """Estimated; -1 = not yet, -2 = could not be."""


@dataclass(frozen=True)
class AdaptiveSampling(Scheme):
    """Prefers fast clients and large gradients, self-tuned.

    How much it prefers them is set by what this federation reports.

    Args:
        k: draws in a round; a client drawn twice trains once and weighs double.
        pilot: rounds of each of the two pilots, at least 2.
        c: used where the pilots give no estimate.
        best_loss: the loss that training could reach; that of the pilots must stay above it.
        floor: a client's least probability, in units of 1 / clients.
        clip: largest weight; 0 = no limit. A limit lowers the variance and brings a bias.
    """

    name: ClassVar[str] = "adaptive-sampling"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY})
    uses: ClassVar[frozenset[Need]] = frozenset({Need.LOSS, Need.UPDATE})
    """Of those who took part, if the host has it; without losses c stays as it is."""

    k: int = 10
    pilot: int = 10
    c: float = 5.0
    best_loss: float = 0.0
    floor: float = 0.1
    clip: float = 0.0

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        check_options(self.k, self.c, self.floor, self.clip, self.name)
        at_least(self.pilot, 2, f"pilot of {self.name}")
        if not math.isfinite(self.best_loss):
            raise InputError(f"best_loss of {self.name} must be finite, but {self.best_loss} came")

    def init(self) -> Pilots:
        """Nothing seen yet."""
        return Pilots()

    def select(self, state: Pilots, view: View, rng: np.random.Generator) -> tuple[Cohort, Pilots]:
        """Draw uniformly, then by the second pilot's distribution, then by the optimum."""
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
        """Estimate the loss of the shared model from those who were drawn, while the pilots last."""
        known = report.finished & ~np.isnan(report.loss) & (report.weights > 0)
        if state.c != -1 or len(state.losses) >= 2 * self.pilot or not known.any():
            return state
        loss = float(report.weights[known] @ report.loss[known] / report.weights[known].sum())
        return replace(state, losses=(*state.losses, loss))

    def _second(self, view: View, rows: IntArray, share: FloatArray) -> FloatArray:
        q = share * gradient_norms(view, rows, share) if np.ptp(share) <= 1e-9 else share
        # The floor keeps weights bounded here too, and everybody who counts possible.
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
    """Return c from the excess losses of two pilots and their M_q; None where they do not tell."""
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
    """Return the uniform distribution over those who count."""
    return np.asarray((share > 0) / (share > 0).sum())
