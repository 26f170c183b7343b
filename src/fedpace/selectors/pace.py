"""pace: moment matching that measures its own error, pays back what it left out, and gathers speed.

Ours; docs/theory.md derives it and docs/results.md shows what it is worth. In every round the fastest clients that
can be weighted to match the population are chosen, as in `moment-match`, with four additions:

- Calibration. Moments live in one metric and updates in another, the ratio changes as training goes on, and moments say
  nothing of what is random in an update. Both are measured on pairs of clients that trained from one model: relative to
  the averaged update, |u_i - u_j|^2 = s |p_i - p_j|^2 + 2 nu, slope and intercept (`fedpace.numerics.calibration`). The
  error of weights a is then s a'Ga + nu sum a_i^2. Early on clients agree, both are small, and few fast clients do;
  near the optimum |u| shrinks, they grow, and so does the set: training converges where a fixed set would stall.
- Repayment. What earlier cohorts had too much or too little of, sum over rounds of 2^-age (a - share), is added to the
  deviation that the next weights must cancel. Slow clients with rare data then come in now and then, with the weight
  that they are owed, instead of in every round or never.
- Deadlines. Answers are late by chance, and one of them holds up the whole cohort. How late answers came so far says
  what each end of the round would cost in expectation, and bring: it ends where seconds / (1 - error) is least
  (`fedpace.numerics.arrivals`). Who is late is owed its weight from then on.
- Speed. The shared model carries on with what earlier rounds moved, unless clients go all of the way by themselves, and
  while that builds up the step is as long as the cohort's disagreement and the curvature allow (`server.nesterov`).
  Both carry errors on as well as progress, which matched cohorts can afford. What they add up to is finite, so that
  training ends where plain averaging would.

There is nothing to tune: what is owed halves from round to round, and s and nu keep 0.7 of what they were.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedpace._base.checks import FloatArray, at_least, between, finite
from fedpace.core.accumulators import Accumulator
from fedpace.core.protocols import RIDGE
from fedpace.core.stepping import ServerStep
from fedpace.core.types import Cohort, Diagnostics, Need, Report, Scheme, View
from fedpace.numerics.arrivals import LEAST, UNBROKEN, Deadline, Lateness, best_deadline, present
from fedpace.numerics.calibration import PairSums
from fedpace.selectors._drawing import share_weights
from fedpace.selectors._matching import Match, match_population, population_points, reasons
from fedpace.selectors._remembered import AnswerLateness, RecentWeight
from fedpace.server.fedexp import Fedexp
from fedpace.server.nesterov import Nesterov

SUMS_KEPT = 0.7
"""What the sums over pairs keep in a round."""
JUMP = 10.0
"""One round may raise or lower the disagreement by this factor at most: u can be 0 by accident."""
UNKNOWN = -1.0
LEAST_OWN = 1e-4
"""nu is taken for at least this part of what moments explain: clients that look the same then share their weight."""
NOTHING = 1e-9
"""Stands for that part where moments explain nothing."""


@dataclass(frozen=True)
class Measured:
    """What pace remembers."""

    x: float = UNKNOWN
    """Sums over pairs (`PairSums`), as are the next three."""
    y: float = UNKNOWN
    xx: float = UNKNOWN
    xy: float = UNKNOWN
    square: float = 0.0
    """|u|^2 of the last round, whose pairs are still to be looked at; 0 = there is nothing to look at."""
    step: int = -1
    """The selection that it is about."""
    fresh: int = UNBROKEN
    """How many of the newest answers tell how late answers come at present (`fedpace.numerics.arrivals.present`)."""
    arrivals: float = UNKNOWN
    """Clients that were expected before the deadline of the cohort that is out; unknown where it has none."""

    @property
    def sums(self) -> PairSums | None:
        """The sums; None while nothing is measured."""
        return PairSums(self.x, self.y, self.xx, self.xy) if self.x >= 0 else None

    def with_sums(self, sums: PairSums) -> Measured:
        """Return this with other sums, and nothing left to look at."""
        return replace(self, x=sums.x, y=sums.y, xx=sums.xx, xy=sums.xy, square=0.0)


@dataclass(frozen=True)
class Pace(Scheme):
    """The fastest clients that match everybody well enough.

    How well that is depends on the stage of training, and is measured as it goes on.

    Args:
        ridge: added to the mean moment before it is inverted, in units of its mean eigenvalue.
        max_clients: most clients in a cohort; 0 = no limit.
        repay: take what earlier cohorts left out into account.
        deadlines: end a round when those that are missing are not worth waiting for.
        momentum: carry steps on from round to round.
        fedexp_exponent: exponent of FedExP's factor, by which disagreement lets steps be lengthened, momentum included:
            0 = not at all.
    """

    name: ClassVar[str] = "pace"
    renamed: ClassVar[Mapping[str, str]] = {"extrapolate": "fedexp_exponent"}
    """Former names of options: older experiments and records still use them."""
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY, Need.MOMENT})
    uses: ClassVar[frozenset[Need]] = frozenset({Need.TARGETS, Need.UPDATE})
    """Without targets only the speed is matched, not the optimum; without updates s stays 1 and nu 0."""
    first_moments: ClassVar[bool] = True
    """Moments of different clients are compared, so each client reports its moment once, with its first model."""
    accumulates: ClassVar[tuple[Accumulator, ...]] = (RecentWeight(), AnswerLateness())

    ridge: float = RIDGE
    max_clients: int = 0
    repay: bool = True
    deadlines: bool = True
    momentum: bool = True
    fedexp_exponent: float = 1.0

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        at_least(self.ridge, 0, f"ridge of {self.name}")
        finite(self.ridge, f"ridge of {self.name}")
        at_least(self.max_clients, 0, f"max_clients of {self.name}")
        between(self.fedexp_exponent, 0, 1, f"fedexp_exponent of {self.name}")

    @property
    def server(self) -> ServerStep[Any] | None:
        """The server step that this scheme uses by default; None = the plain average."""
        if self.momentum:
            return Nesterov(self.fedexp_exponent)
        return Fedexp(self.fedexp_exponent) if self.fedexp_exponent else None

    def init(self) -> Measured:
        """Nothing is measured yet."""
        return Measured()

    def select(self, state: Measured, view: View, rng: np.random.Generator) -> tuple[Cohort, Measured]:
        """Scan the prefixes with the error as it was measured last."""
        points = population_points(view, ridge=self.ridge, scheme=self.name)
        state = measured(state, view, points)
        typical = float(np.nanmean(np.square(points).sum(axis=1)))
        s, nu = (1.0, 0.0) if state.sums is None else state.sums.line(2 * typical)
        owed = outstanding(view, points) if self.repay else np.zeros(points.shape[1])
        own = max(nu, LEAST_OWN * s * typical, NOTHING)
        due = math.sqrt(s) * (points + owed)
        match = match_population(view, due, own=own, least=2, max_clients=self.max_clients)
        end = self._end(state, view, match, due, own)
        why = Diagnostics(
            objective=match.chosen.predicted if match.feasible else None,
            predicted_seconds=match.chosen.seconds if end is None else end.expected,
            status="ok" if match.feasible else "no cohort is close enough to the population: the closest was taken",
            facts={
                "rho": match.chosen.error,
                "s": s,
                "nu": nu,
                "calibrated": state.sums is not None,
                "owed": float(owed @ owed),
                "prefix": match.chosen.prefix,
                "deadline": None if end is None or math.isinf(end.seconds) else end.seconds,
                "frontier": match.table(),
            },
            reasons=reasons(view, match),
        )
        deadline = math.inf if end is None else end.seconds
        arrivals = UNKNOWN if end is None or math.isinf(deadline) else end.arrivals
        return Cohort(match.clients, match.weights, deadline=deadline, why=why), replace(state, arrivals=arrivals)

    def _end(self, state: Measured, view: View, match: Match, points: FloatArray, own: float) -> Deadline | None:
        """Return how long to wait for the cohort; None while too little is known about lateness."""
        answers = view.accumulated.get(AnswerLateness.name)
        if not self.deadlines or answers is None or len(answers) < LEAST:
            return None
        ratios, given_up = answers[:, 0], answers[:, 1] > 0
        lateness = Lateness.since(ratios, given_up, min(state.fresh, ratios.size))
        rows = match.clients
        return best_deadline(view.delay[rows], match.weights, points[rows], lateness, own=own)

    def observe(self, state: Measured, report: Report) -> Measured:
        """Note how long the averaged update was, and whether fewer came than the deadline was to let in."""
        new, finished = int((report.seconds > 0).sum()), int(report.finished.sum())
        if state.arrivals >= 0:
            state = replace(state, fresh=present(state.fresh, new, arrivals=state.arrivals, finished=finished))
        elif state.fresh >= 0:
            state = replace(state, fresh=state.fresh + new)
        if report.updates is None:
            return state
        reported = report.finished & ~np.isnan(report.updates).any(axis=1) & (report.weights > 0)
        weights = report.weights[reported]
        # One client shows no disagreement, and the minority of a cohort not the cohort's.
        if weights.size < 2 or weights.sum() < 0.5 * report.weights.sum():
            return state
        return replace(state, square=squared(report.updates[reported], weights / weights.sum()), step=report.step)


def measured(state: Measured, view: View, points: FloatArray) -> Measured:
    """Return the state with the pairs of the last round in it, or with those of a warm-up where it was the first."""
    if view.updates is None or view.update_step is None:
        return state
    reported = ~np.isnan(view.updates).any(axis=1) & ~np.isnan(points).any(axis=1)
    if state.sums is None:
        # The newest updates that at least two clients made from one model, such as those of a warm-up.
        for step in np.unique(view.update_step[reported])[::-1]:
            rows = np.flatnonzero(reported & (view.update_step == step))
            square = squared(view.updates[rows], share_weights(view, rows))
            if sums := PairSums.of(view.updates[rows], points[rows], square):
                return state.with_sums(sums)
        return state
    rows = np.flatnonzero(reported & (view.update_step == state.step))
    newest = PairSums.of(view.updates[rows], points[rows], state.square)
    if newest is None:
        return replace(state, square=0.0)
    if state.y > 0 and newest.y > 0:
        newest = newest.scaled(min(max(newest.y / state.y, 1 / JUMP), JUMP) * state.y / newest.y)
    return state.with_sums(state.sums.mixed(newest, SUMS_KEPT))


def squared(updates: FloatArray, weights: FloatArray) -> float:
    """Return |sum_i a_i u_i|^2."""
    mean = weights @ updates
    return float(mean @ mean)


def outstanding(view: View, points: FloatArray) -> FloatArray:
    """Return the deviation from the population that recent rounds add up to."""
    weights = view.accumulated.get(RecentWeight.name)
    if weights is None:
        return np.zeros(points.shape[1])
    known = np.flatnonzero(~np.isnan(points).any(axis=1))
    recent = weights[known]
    excess = recent - share_weights(view, known) * recent.sum()
    return np.asarray(excess @ points[known])
