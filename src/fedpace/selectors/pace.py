"""pace: synchronous moment matching with measured errors, repayment, deadlines, a memory and momentum.

Ours; docs/theory.md derives it, docs/results.md reports results. As in `moment-match`, each round selects the fastest
clients whose weighted mixture matches the population. pace adds five parts:

- Calibration. Distances between moments and distances between updates have different units, their ratio changes during
  training, and moments do not show the noise in an update. pace measures ratio and noise on pairs of clients that
  trained from the same model. Relative to the averaged update, |u_i - u_j|^2 = s |p_i - p_j|^2 + 2 nu, where p_i is a
  client's point in moment space (`fedpace.numerics.calibration`). The relative squared error of weights a is then s
  a'Ga + nu sum a_i^2. Early in training, clients agree, s and nu are small, and a few fast clients are enough. Near the
  optimum |u| shrinks, s and nu grow, and so does the cohort. Training therefore converges where a fixed cohort would
  stall.
- Repayment. The deviation of earlier cohorts from the population, the sum over rounds of 2^-age (a - share), is added
  to the deviation that the next weights must cancel. Slow clients with rare data therefore take part now and then, with
  the weight that they are owed, instead of in every round or never.
- Deadlines. A single straggler delays the whole cohort. From the lateness of earlier answers, pace predicts the cost
  and benefit of every possible end of the round, and ends the round where seconds / (1 - error) is smallest
  (`fedpace.numerics.arrivals`). Repayment then makes up for the clients that missed the deadline.
- Memory. The server remembers by how much each client's update differed from the others', and corrects the rounds in
  which the client does not take part (`server.memory_corrected`). Without it, slow clients that alone hold some classes
  lose in the rounds without them what they taught in the rounds with them: repayment halves per round, so it never owes
  a client more than one round's weight.
- Speed. The server step uses Nesterov momentum, unless a plain average already reaches the minimum along the path.
  While momentum builds up, the step is as long as the cohort's disagreement and the curvature allow
  (`server.nesterov`). Both amplify errors as well as progress, which matched cohorts can afford. The total extra length
  is finite, so that training ends where plain averaging would.

There are no constants to tune: repayment halves per round, and s and nu keep 0.7 of their old value per round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace._base.options import FINITE, AtLeast, Between
from fedpace.core.server_rule import ServerRule
from fedpace.core.types import Accumulator, Cohort, Diagnostics, Need, Report, Scheme, View
from fedpace.moments.store import RIDGE
from fedpace.numerics.arrivals import LEAST, UNBROKEN, Deadline, Lateness, best_deadline, present
from fedpace.numerics.calibration import PairSums
from fedpace.selectors._drawing import share_weights
from fedpace.selectors._matching import Match, match_population, population_points, reasons
from fedpace.selectors._remembered import AnswerLateness, RecentWeight
from fedpace.server._row_store import Precision
from fedpace.server.fedexp import Fedexp
from fedpace.server.memory_corrected import MemoryCorrected
from fedpace.server.nesterov import Nesterov

SUMS_KEPT = 0.7
"""Part of the sums over pairs that is kept per round."""
JUMP = 10.0
"""Largest factor by which one round may change the measured disagreement; |u| can be close to 0 by accident."""
UNKNOWN = -1.0
LEAST_OWN = 1e-4
"""Lower bound of nu, as a part of the disagreement that moments explain. It makes clients with equal moments share
their weight."""
NOTHING = 1e-9
"""Lower bound of nu if moments explain nothing."""


@dataclass(frozen=True)
class Measured:
    """State of pace. A value of -1 is unknown, except in `fresh`."""

    x: float = UNKNOWN
    """Sums over pairs of clients (`PairSums`): x, y, xx, xy."""
    y: float = UNKNOWN
    xx: float = UNKNOWN
    xy: float = UNKNOWN
    square: float = 0.0
    """|u|^2 of the last round if its pairs are not in the sums yet; 0 = no such round."""
    step: int = -1
    """The step of that round."""
    fresh: int = UNBROKEN
    """Number of newest answers that show the current lateness; -1 = all (`fedpace.numerics.arrivals.present`)."""
    arrivals: float = UNKNOWN
    """Expected number of answers before the current cohort's deadline; unknown without a deadline."""

    @property
    def sums(self) -> PairSums | None:
        """The sums over pairs; None before the first measurement."""
        return PairSums(self.x, self.y, self.xx, self.xy) if self.x >= 0 else None

    def with_sums(self, sums: PairSums) -> Measured:
        """Return the state with new sums, and with no round left to measure."""
        return replace(self, x=sums.x, y=sums.y, xx=sums.xx, xy=sums.xy, square=0.0)


@dataclass(frozen=True)
class Pace(Scheme):
    """Fast clients whose data together resemble everybody's.

    The tolerated error depends on the stage of training, and pace measures it during training.

    Args:
        ridge: added to the mean moment before it is inverted, in units of its mean eigenvalue.
        max_clients: largest number of clients in a cohort; 0 = no limit.
        repay: compensate for the deviation of earlier cohorts from the population.
        deadlines: end a round when waiting for the missing clients no longer pays.
        momentum: use Nesterov momentum and the memory in the server step.
        fedexp_exponent: exponent of FedExP's factor, which lengthens steps when clients disagree; momentum counts as
            part of the factor. 0 = do not lengthen steps.
        memory_gib: memory for the clients' remembered differences. When it is full, the server forgets the clients that
            it heard from longest ago. 0 = remember nothing.
        memory: how differences are stored: `float32`, 4 bytes per client and parameter; `16bit`, `8bit` or `4bit`,
            about 2, 1 and 0.53 bytes; `auto`, the most bits in which all clients have room.
        memory_folder: folder for the differences, as mapped files without names; empty = in memory.
    """

    name: ClassVar[str] = "pace"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY, Need.MOMENT})
    uses: ClassVar[frozenset[Need]] = frozenset({Need.TARGETS, Need.UPDATE})
    """Without targets, the cohort matches the population's curvature, but not its optimum. Without updates, s = 1, nu =
    0."""
    first_moments: ClassVar[bool] = True
    """Moments of different clients are compared, so each client reports its moment once, with its first model."""
    accumulates: ClassVar[tuple[Accumulator, ...]] = (RecentWeight(), AnswerLateness())
    not_with: ClassVar[Mapping[str, str]] = {
        "scaffold": "control variates hide how far clients disagree, by which pace chooses its cohorts. Use "
        "algorithm = 'fedavg', since pace remembers the clients' differences on the server, or use pace-async"
    }

    ridge: Annotated[float, AtLeast(0), FINITE] = RIDGE
    max_clients: Annotated[int, AtLeast(0)] = 0
    repay: bool = True
    deadlines: bool = True
    momentum: bool = True
    fedexp_exponent: Annotated[float, Between(0, 1)] = 1.0
    memory_gib: Annotated[float, AtLeast(0), FINITE] = 1.0
    memory: Precision = "auto"
    memory_folder: str = ""

    @property
    def server(self) -> ServerRule[Any] | None:
        """The server step that this scheme uses by default; None = the plain average."""
        if self.momentum and self.memory_gib:
            return MemoryCorrected(
                self.fedexp_exponent,
                self.memory_gib,
                everyone=True,
                memory=self.memory,
                memory_folder=self.memory_folder,
            )
        if self.momentum:
            return Nesterov(self.fedexp_exponent)
        return Fedexp(self.fedexp_exponent) if self.fedexp_exponent else None

    def init(self) -> Measured:
        """Return the state before the first round."""
        return Measured()

    def select(self, state: Measured, view: View, rng: np.random.Generator) -> tuple[Cohort, Measured]:
        """Return the best prefix of clients by delay, under the error measured last, and the state."""
        points = population_points(view, ridge=self.ridge, scheme=self.name)
        state = measured(state, view, points)
        typical = float(np.nanmean(np.square(points).sum(axis=1)))
        s, nu = (1.0, 0.0) if state.sums is None else state.sums.line(2 * typical)
        owed = outstanding(view, points) if self.repay else np.zeros(points.shape[1])
        own = max(nu, LEAST_OWN * s * typical, NOTHING)
        due = math.sqrt(s) * (points + owed)
        match = match_population(view, due, own=own, least=max(2, view.minimum), max_clients=self.max_clients)
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
        """Return when to end the round; None while too few answers show the lateness, or if `deadlines` is off."""
        answers = view.accumulated.get(AnswerLateness.name)
        if not self.deadlines or answers is None or len(answers) < LEAST:
            return None
        ratios, given_up = answers[:, 0], answers[:, 1] > 0
        lateness = Lateness.since(ratios, given_up, min(state.fresh, ratios.size))
        rows = match.clients
        return best_deadline(view.delay[rows], match.weights, points[rows], lateness, own=own)

    def observe(self, state: Measured, report: Report) -> Measured:
        """Record the length of the averaged update, and whether fewer answers arrived than expected by the deadline."""
        new, finished = int((report.seconds > 0).sum()), int(report.finished.sum())
        if state.arrivals >= 0:
            state = replace(state, fresh=present(state.fresh, new, arrivals=state.arrivals, finished=finished))
        elif state.fresh >= 0:
            state = replace(state, fresh=state.fresh + new)
        if report.updates is None:
            return state
        reported = report.finished & ~np.isnan(report.updates).any(axis=1) & (report.weights > 0)
        weights = report.weights[reported]
        # One client shows no disagreement, and less than half of the cohort's weight does not represent the cohort.
        if weights.size < 2 or weights.sum() < 0.5 * report.weights.sum():
            return state
        return replace(state, square=squared(report.updates[reported], weights / weights.sum()), step=report.step)


def measured(state: Measured, view: View, points: FloatArray) -> Measured:
    """Return the state after measuring the pairs of the last round.

    Before the first measurement, use the newest step with enough updates instead.
    """
    if view.updates is None or view.update_step is None:
        return state
    reported = ~np.isnan(view.updates).any(axis=1) & ~np.isnan(points).any(axis=1)
    if state.sums is None:
        # Use the newest step in which at least two clients trained from the same model, such as a warm-up.
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
    """Return the decaying sum of earlier cohorts' deviations from the population, as a point in moment space."""
    weights = view.accumulated.get(RecentWeight.name)
    if weights is None:
        return np.zeros(points.shape[1])
    known = np.flatnonzero(~np.isnan(points).any(axis=1))
    recent = weights[known]
    excess = recent - share_weights(view, known) * recent.sum()
    return np.asarray(excess @ points[known])
