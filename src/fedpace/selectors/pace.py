"""pace: moment matching that measures its own error, pays back what it left out, and gathers speed.

Ours; docs/theory.md derives it and docs/results.md shows what each part brings. In every round the fastest clients that
can be weighted to match the population are chosen, as in `moment-match`, with four additions:

- Calibration. Moments live in one metric and updates in another, and the ratio changes as training goes on. After a
  round with weights a and updates u_i, u = sum a_i u_i, the observed disagreement e = sum a_i |u_i - u|^2 / |u|^2 is
  divided by the one that the moments predict, v = sum a_i G_ii - a'Ga. The exponential average s of e / v multiplies
  rho. Early on clients agree, s is small, and few fast clients do; near the optimum |u| shrinks, s grows, and so does
  the set, so that training converges where a fixed set would stall.
- Repayment. What earlier cohorts had too much or too little of, sum over rounds of 2^-age (a - share), is added to the
  deviation that the next weights must cancel. Slow clients with rare data then come in now and then, with the weight
  that they are owed, instead of in every round or never.
- Deadlines. Answers are late by chance, and one of them holds up the whole cohort. How late answers came so far says
  what each end of the round would cost in expectation, and bring: it ends where seconds / (1 - error) is least
  (`fedpace.numerics.arrivals`). Who is late is owed its weight from then on.
- Speed. The shared model carries on with what earlier rounds moved (Nesterov's momentum, `fedpace.core.acceleration`),
  and while that builds up the step is as long as the cohort's disagreement allows (FedExP,
  `fedpace.core.extrapolation`). Both carry errors on as well as progress, which matched cohorts can afford.

There is nothing to tune: what is owed halves from round to round, and s keeps 0.7 of what it was.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedpace.core.checks import FloatArray, at_least, between, finite
from fedpace.core.stepping import ServerStep
from fedpace.core.types import Cohort, Diagnostics, Need, Probe, Report, View
from fedpace.numerics.arrivals import LEAST, Deadline, Lateness, best_deadline
from fedpace.selectors._drawing import share_weights
from fedpace.selectors._matching import Match, match_population, population_points, reasons
from fedpace.server.fedexp import FedExP
from fedpace.server.nesterov import Nesterov

KEPT = 0.7
"""What the average of e / v keeps in a round."""
JUMP = 10.0
"""One round may raise or lower the average's newest term by this factor at most: u can be 0 by accident."""
UNKNOWN = -1.0


@dataclass(frozen=True)
class Calibrated:
    """What pace remembers."""

    scale: float = UNKNOWN
    """s: observed over predicted disagreement."""
    predicted: float = UNKNOWN
    """v of the cohort that is out."""


@dataclass(frozen=True)
class Pace:
    """The fastest clients that match everybody as well as this stage of training needs.

    Args:
        ridge: added to the mean moment before it is inverted, in units of its mean eigenvalue.
        max_clients: most clients in a cohort; 0 = no limit.
        repay: take what earlier cohorts left out into account.
        deadlines: end a round when those that are missing are not worth waiting for.
        momentum: carry steps on from round to round.
        extrapolate: power of the factor by which disagreement lets steps be lengthened, momentum included: 0 = not at
            all, 1 = FedExP.
    """

    name: ClassVar[str] = "pace"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY, Need.MOMENT})
    uses: ClassVar[frozenset[Need]] = frozenset({Need.TARGETS, Need.UPDATE})
    """Without targets only the speed is matched, not the optimum; without updates s stays 1."""
    first_moments: ClassVar[bool] = True
    """Moments are compared with one another, so they must be of one model: the one that the client first met."""

    ridge: float = 0.1
    max_clients: int = 0
    repay: bool = True
    deadlines: bool = True
    momentum: bool = True
    extrapolate: float = 1.0

    def __post_init__(self) -> None:
        """Refuse options that make no sense."""
        at_least(self.ridge, 0, f"ridge of {self.name}")
        finite(self.ridge, f"ridge of {self.name}")
        at_least(self.max_clients, 0, f"max_clients of {self.name}")
        between(self.extrapolate, 0, 1, f"extrapolate of {self.name}")

    @property
    def server(self) -> ServerStep[Any] | None:
        """How the server steps, unless it is told otherwise."""
        if self.momentum:
            return Nesterov(self.extrapolate)
        return FedExP(self.extrapolate) if self.extrapolate else None

    def init(self) -> Calibrated:
        """Nothing is measured yet."""
        return Calibrated()

    def probe(self, state: Calibrated, view: View, rng: np.random.Generator) -> Probe | None:
        """Ask nobody."""
        return None

    def select(self, state: Calibrated, view: View, rng: np.random.Generator) -> tuple[Cohort, Calibrated]:
        """Scan the prefixes with the error as it was measured last."""
        points = population_points(view, ridge=self.ridge, scheme=self.name)
        measured = state.scale if state.scale >= 0 else first_scale(view, points)
        scale = 1.0 if measured < 0 else measured
        owed = outstanding(view, points) if self.repay else np.zeros(points.shape[1])
        due = points + owed
        match = match_population(view, due, scale=scale, least=2, max_clients=self.max_clients)
        end = self._end(view, match, due, scale)
        why = Diagnostics(
            objective=match.chosen.predicted if match.feasible else None,
            predicted_seconds=match.chosen.seconds if end is None else end.expected,
            status="ok" if match.feasible else "no cohort is close enough to the population: the closest was taken",
            facts={
                "rho": match.chosen.error,
                "s": scale,
                "calibrated": measured >= 0,
                "owed": float(owed @ owed),
                "prefix": match.chosen.prefix,
                "deadline": None if end is None or math.isinf(end.seconds) else end.seconds,
                "frontier": match.table(),
            },
            reasons=reasons(view, match),
        )
        cohort = Cohort(
            match.clients,
            match.weights,
            deadline=math.inf if end is None else end.seconds,
            why=why,
        )
        return cohort, Calibrated(measured, spread(points[match.clients], match.weights))

    def _end(self, view: View, match: Match, points: FloatArray, scale: float) -> Deadline | None:
        """Return how long to wait for the cohort; None while too little is known about lateness."""
        if not self.deadlines or view.lateness is None or len(view.lateness) < LEAST:
            return None
        lateness = Lateness.estimated(view.lateness[:, 0], view.lateness[:, 1] > 0)
        rows = match.clients
        return best_deadline(view.delay[rows], match.weights, points[rows], lateness, scale=scale)

    def observe(self, state: Calibrated, report: Report) -> Calibrated:
        """Compare the disagreement of those that came back with the predicted one."""
        if report.updates is None or state.predicted <= 0:
            return state
        told = report.finished & ~np.isnan(report.updates).any(axis=1) & (report.weights > 0)
        weights = report.weights[told]
        # One client shows no disagreement, and the minority of a cohort not the cohort's.
        if weights.size < 2 or weights.sum() < 0.5 * report.weights.sum():
            return state
        observed = disagreement(report.updates[told], weights / weights.sum())
        if observed is None:
            return state
        newest = observed / state.predicted
        if state.scale < 0:
            return replace(state, scale=newest)
        newest = min(max(newest, state.scale / JUMP), state.scale * JUMP)
        return replace(state, scale=KEPT * state.scale + (1 - KEPT) * newest)


def spread(points: FloatArray, weights: FloatArray) -> float:
    """Return sum_i a_i |p_i - p|^2, p = sum_i a_i p_i: for the Gram matrix, sum_i a_i G_ii - a'Ga."""
    centre = weights @ points
    return float(weights @ np.square(points - centre).sum(axis=1))


def disagreement(updates: FloatArray, weights: FloatArray) -> float | None:
    """Return sum_i a_i |u_i - u|^2 / |u|^2; None where the updates cancel out completely."""
    mean = weights @ updates
    square = float(mean @ mean)
    return spread(updates, weights) / square if square > 0 else None


def first_scale(view: View, points: FloatArray) -> float:
    """Measure s on the newest updates that at least two clients made from one model, such as those of a warm-up."""
    if view.updates is None or view.update_step is None:
        return UNKNOWN
    told = ~np.isnan(view.updates).any(axis=1) & ~np.isnan(points).any(axis=1)
    for step in np.unique(view.update_step[told])[::-1]:
        rows = np.flatnonzero(told & (view.update_step == step))
        if rows.size >= 2:
            weights = share_weights(view, rows)
            predicted, observed = spread(points[rows], weights), disagreement(view.updates[rows], weights)
            if predicted > 0 and observed is not None:
                return observed / predicted
    return UNKNOWN


def outstanding(view: View, points: FloatArray) -> FloatArray:
    """Return the deviation from the population that recent rounds add up to."""
    if view.recent_weight is None:
        return np.zeros(points.shape[1])
    known = np.flatnonzero(~np.isnan(points).any(axis=1))
    recent = view.recent_weight[known]
    excess = recent - share_weights(view, known) * recent.sum()
    return np.asarray(excess @ points[known])
