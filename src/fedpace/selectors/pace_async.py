"""pace-async: the asynchronous form of pace. The server waits only for answers that the next step needs.

Ours; docs/theory.md derives it. All clients train all the time. Answers to the current model count in the next step,
and the server makes the step as soon as waiting for one more answer no longer pays. A late answer, to an older model,
is not wasted: it shows how the client's update differs from the others. The server remembers this difference and
subtracts it from the client's later updates (`fedpace.server.remembering`). So a few fast clients can represent all
clients, and slow clients contribute whenever they answer.

- When to step. A step with weights a, made t seconds after the last one, brings progress 1 - rho(a). As in `pace`, the
  server minimises t / (1 - rho). It compares stepping now with waiting for each of the next answers to the current
  model, at their expected arrival times.
- Error. rho = s a'Ga + nu sum a_i^2, with s and nu measured on pairs of clients as in `pace`, times the part of the
  disagreement that the memory does not explain. The memory's own error adds to nu. It grows with the age of the
  remembered differences, because their common reference follows only the clients that counted. Late answers show by how
  much.
- First steps. At first the server knows neither moments nor the clients' disagreement, so the first answers serve as a
  warm-up. A client that never answered has no point in moment space. Its error is the mean disagreement of pairs.
- Server step. As in `pace`: Nesterov momentum and FedExP's step length, with the same limits.

There are no constants to tune. If client work costs something, set `work_price` to its price. `in_flight` limits how
many clients train at a time. With a limit, clients take turns: those with the most overdue answers per second of work
go first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedpace._base.checks import BoolArray, FloatArray, IntArray, above, at_least, between, finite, whole
from fedpace.core.accumulators import Accumulator
from fedpace.core.stepping import ServerStep
from fedpace.core.tasks import Apply, Move, Wait
from fedpace.core.types import Diagnostics, Need, Report, Scheme, View
from fedpace.numerics.simplex import Mixture, prefix_mixtures
from fedpace.selectors._outlook import disagreement, nobody_else, patience, remaining
from fedpace.selectors._remembered import AnswerLateness
from fedpace.selectors._work import numbers, worth_having
from fedpace.selectors.pace import LEAST_OWN, NOTHING, Measured, Pace, measured
from fedpace.server.remembering import Remembering

FEWEST = 2
"""Smallest number of answers per step: one client shows no disagreement."""
ENDLESS = 1e6
"""Upper bound of the error, for clients that agree on nothing."""
LEAST_WAIT = 1e-3
"""The shortest wait, as a part of the fastest client's delay, or of a second if that is less."""
PATIENCE = 0.1
"""Wait at least this part of the time since the last step before planning again."""
GROWTH = 0.2
"""If no number of answers gives an error below 1 yet, wait for this fraction more of them before planning again."""
LONGEST = 256
"""Largest number of clients for which the joint error is computed; more clients hardly reduce it."""
AHEAD = 64
"""Number of clients in flight that a plan considers; the step is made long before the others answer."""


@dataclass(frozen=True)
class Known(Measured):
    """State of pace-async."""

    left: float = 1.0
    """Part of the clients' squared disagreement that the server's memory does not explain."""
    mean_age: float = 0.0
    """Mean number of steps since the clients' last answers."""
    drift: float = 0.0
    """Squared error that all remembered differences share, per sum of squared weights."""
    remembered: int = -1
    """Number of clients in the server's memory; -1 = unknown."""
    last: float = 0.0
    """Time of the last step."""
    most: int = 0
    """Largest number of clients in flight until the next step; 0 = not decided yet."""
    awaited: int = 0
    """Number of answers to the current model at which to plan again."""
    look: float = 0.0
    """Time at which to plan again even with fewer answers."""


@dataclass(frozen=True)
class _Plan:
    """Whether to step now, and if not, when to plan again."""

    mixture: Mixture
    """Weights of the fresh answers in hand."""
    now: bool
    awaited: int
    """Number of fresh answers at which to plan again."""
    seconds: float
    """Longest time to wait for them."""


@dataclass(frozen=True)
class PaceAsync(Scheme):
    """A step whenever waiting for more replies does not pay.

    Args:
        in_flight: largest number of clients that train at a time; 0 = all that can be reached.
        work_price: price of one second of a client's work, in seconds of training time. The scheme chooses the number
            of clients in flight that minimises time and work together; 0 = work is free.
        ridge: added to the mean moment before it is inverted, in units of its mean eigenvalue.
        fedexp_exponent: exponent of FedExP's factor, which lengthens steps when clients disagree; momentum counts as
            part of the factor. 0 = do not lengthen steps.
        memory_gib: memory for the clients' remembered differences, 4 bytes per client and parameter, and the same again
            for the references of past models. When it is full, the server forgets the clients that it heard from
            longest ago.
    """

    name: ClassVar[str] = "pace-async"
    renamed: ClassVar[Mapping[str, str]] = {"extrapolate": "fedexp_exponent"}
    """Former names of options: older experiments and records still use them."""
    needs: ClassVar[frozenset[Need]] = frozenset()
    uses: ClassVar[frozenset[Need]] = frozenset({Need.DELAY, Need.MOMENT, Need.TARGETS, Need.UPDATE})
    """Without updates, the disagreement of clients cannot be measured: s = 1, nu = 0."""
    rounds: ClassVar[bool] = False
    first_moments: ClassVar[bool] = True
    """Moments of different clients are compared, so each client reports its moment once, with its first model."""
    accumulates: ClassVar[tuple[Accumulator, ...]] = (AnswerLateness(),)

    in_flight: int = 0
    work_price: float = 0.0
    ridge: float = Pace.ridge
    fedexp_exponent: float = 1.0
    memory_gib: float = 1.0

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        whole(self.in_flight, 0, f"in_flight of {self.name}")
        for option in ("ridge", "work_price"):
            at_least(getattr(self, option), 0, f"{option} of {self.name}")
            finite(getattr(self, option), f"{option} of {self.name}")
        between(self.fedexp_exponent, 0, 1, f"fedexp_exponent of {self.name}")
        above(self.memory_gib, 0, f"memory_gib of {self.name}")
        finite(self.memory_gib, f"memory_gib of {self.name}")

    @property
    def server(self) -> ServerStep[Any] | None:
        """The server step that this scheme uses by default; None = the plain average."""
        return Remembering(self.fedexp_exponent, self.memory_gib)

    def init(self) -> Known:
        """Return the state before the first step."""
        return Known()

    def decide(self, state: Known, view: View, rng: np.random.Generator) -> tuple[Move, Known]:
        """Step if waiting does not pay, and start the idle clients."""
        hand = view.in_hand
        fresh = np.flatnonzero(hand.step == view.step)
        plan = None
        if fresh.size and (fresh.size >= state.awaited or view.now >= state.look or nobody_else(view, fresh)):
            points, state = self._points(state, view)
            plan = self._plan(state, view, points, fresh)
            # A wait of almost nothing would end at once, in the same state, and would be planned again for ever.
            shortest = LEAST_WAIT * float(np.nanmin(view.delay, initial=1.0))
            state = replace(state, awaited=plan.awaited, look=view.now + max(plan.seconds, shortest))
        apply = None
        facts: dict[str, Any] = {}
        if plan is not None and plan.now:
            weights = np.zeros(len(hand))
            weights[fresh[plan.mixture.clients]] = plan.mixture.weights
            apply = Apply(hand.ids, weights)
            facts = {
                "rho": plan.mixture.error,
                "left": state.left,
                "fresh": int(fresh.size),
                "late": len(hand) - int(fresh.size),
                "mean age": state.mean_age,
            }
            state = replace(state, last=view.now, awaited=0, look=0.0)
        if apply is not None or not state.most:
            state = self._with_most(state, view)
        rows = view.candidates
        if apply is None:  # clients that answered this model wait for the next one
            answered = np.zeros(view.clients, dtype=np.bool_)
            answered[hand.clients[fresh]] = True
            rows = rows[~answered[rows]]
        start = self._starting(view, rows, state.most)
        left = 0 if apply is not None else len(hand)
        waiting = fresh.size and apply is None and math.isfinite(state.look)
        wait = Wait(left + 1, state.look - view.now if waiting else math.inf)
        turns = state.most < view.clients
        reasons = dict.fromkeys(
            start.tolist(), "its answer is the most overdue" if turns else "at work whenever it can be"
        )
        why = Diagnostics(objective=plan.mixture.error if plan else None, facts=facts, reasons=reasons)
        return Move(start, np.zeros(start.size), apply, wait=wait, why=why), state

    def _with_most(self, state: Known, view: View) -> Known:
        """Return the state with the largest number of clients in flight until the next step."""
        most = self.in_flight or view.clients
        known = np.flatnonzero(view.delay > 0)  # NaN = unknown
        if not self.work_price or not known.size:
            return replace(state, most=most)
        points, state = self._points(state, view)
        order = known[np.lexsort((known, view.delay[known]))]
        lengths = [length for length in numbers(order.size) if length <= LONGEST]
        nobody = np.empty(0, dtype=np.int64)
        table, own = self._errors(state, view, points, order[: lengths[-1]], nobody)
        mixtures = prefix_mixtures(table, np.arange(lengths[-1]), lengths, own=own)
        errors = np.array([mixture.error for mixture in mixtures])
        return replace(state, most=min(most, worth_having(self.work_price, view.delay[order], lengths, errors, FEWEST)))

    @staticmethod
    def _starting(view: View, rows: IntArray, most: int) -> IntArray:
        """Return the clients to start: all, or if too many, those with the most overdue answers per second."""
        room = max(0, most - len(view.in_flight))
        if room >= rows.size:
            return rows
        heard = np.full(rows.size, -1) if view.update_step is None else view.update_step[rows]
        known = view.delay[rows] > 0  # clients with unknown delay go first
        overdue = np.divide(view.step + 1.0 - heard, view.delay[rows], out=np.full(rows.size, math.inf), where=known)
        return np.sort(rows[np.lexsort((rows, -overdue))[:room]])

    def _points(self, state: Known, view: View) -> tuple[FloatArray, Known]:
        """Return a point per client in moment space, and the state after measuring the newest pairs.

        A point is NaN if the client's moment is unknown. Without any moments, all points are 0.
        """
        if view.moments is None:
            return np.zeros((view.clients, 1)), state
        points = view.moments.directions(ridge=self.ridge, shares=view.share)
        state = measured(state, view, points)  # type: ignore[assignment]
        return points, state

    def _plan(self, state: Known, view: View, points: FloatArray, fresh: IntArray) -> _Plan:
        """Return whether to step now, or after which of the next answers to plan again."""
        hand, flying = view.in_hand, view.in_flight
        going = np.flatnonzero(flying.step == view.step)
        left = remaining(view, going)
        order = np.lexsort((going, left))[:AHEAD]
        going, left = going[order], left[order]
        rows = np.concatenate([hand.clients[fresh], flying.clients[going]])
        after = np.concatenate([np.zeros(fresh.size), left])
        table, own = self._errors(state, view, points, rows, fresh)
        spent = view.now - state.last
        lengths = list(range(fresh.size, rows.size + 1))
        in_hand: Mixture | None = None
        best = math.inf
        chosen = fresh.size
        for length, mixture in zip(
            lengths, prefix_mixtures(table, np.arange(rows.size), lengths, own=own), strict=True
        ):
            in_hand = in_hand or mixture
            seconds = spent + float(after[length - 1])
            if seconds >= best:
                break  # errors are at least 0, so no longer wait can be better
            cost = seconds / (1.0 - mixture.error) if mixture.error < 1 else math.inf
            if length >= FEWEST and cost < best:
                best, chosen = cost, length
        assert in_hand is not None
        # No other client trains or can start on this model, so waiting brings nothing, whatever the error.
        ended = nobody_else(view, fresh) and (fresh.size >= FEWEST or not len(flying))
        if ended or (chosen == fresh.size and math.isfinite(best)):
            return _Plan(in_hand, now=True, awaited=0, seconds=0.0)
        if not math.isfinite(best):
            return _Plan(in_hand, False, fresh.size + max(1, int(GROWTH * fresh.size)), patience(view) or math.inf)
        # Plan again at half of the missing answers: they show how late the others will be. An awaited client may fail,
        # so a time limit applies too.
        halfway = fresh.size + -(-(chosen - fresh.size) // 2)
        longest = max(float(after[chosen - 1]), PATIENCE * spent)
        return _Plan(in_hand, False, halfway, longest if longest > 0 else math.inf)

    def _errors(
        self, state: Known, view: View, points: FloatArray, rows: IntArray, fresh: IntArray
    ) -> tuple[FloatArray, float]:
        """Return the points and `own` for `numerics.simplex`; the squared length of a mixture is its error."""
        known: BoolArray = np.asarray(~np.isnan(points).any(axis=1))
        lengths = np.square(points[known]).sum(axis=1)
        typical = float(lengths.mean()) if known.any() else 0.0
        s, nu = (1.0, 0.0) if state.sums is None else state.sums.line(2 * typical)
        whole_error = s * typical + nu
        if state.sums is None:
            whole_error = disagreement(view.in_hand.updates(), fresh) if fresh.size else 1.0
        own = state.left * max(nu, LEAST_OWN * s * typical)
        heard = (known & self._remembered(state, view))[rows]
        squares = np.clip(np.where(heard, own, whole_error) + state.drift, NOTHING, ENDLESS)
        shared = float(squares.min())
        table = math.sqrt(s * state.left) * np.where(heard[:, None], np.nan_to_num(points[rows]), 0.0)
        # A client that was never heard has a larger, independent error: give it a coordinate of its own.
        extra = np.flatnonzero(squares > shared)
        apart = np.zeros((rows.size, extra.size))
        apart[extra, np.arange(extra.size)] = np.sqrt(squares[extra] - shared)
        return np.concatenate([table, apart], axis=1), shared

    @staticmethod
    def _remembered(state: Known, view: View) -> BoolArray:
        """(n,) True for clients in the server's memory: if not all fit, those that were heard last."""
        heard = np.asarray(view.participations > 0)
        if view.update_step is None or not 0 <= state.remembered < int(heard.sum()):
            return heard
        newest = np.lexsort((-np.where(heard, view.update_step, -1), ~heard))[: state.remembered]
        return heard & np.isin(np.arange(heard.size), newest)

    def observe(self, state: Known, report: Report) -> Known:
        """Copy what the server step measured into the state."""
        facts = report.step_facts
        state = replace(
            state,
            left=facts.get("disagreement_left", 1.0),
            mean_age=facts.get("mean_age", 0.0),
            drift=facts.get("drift", 0.0),
            remembered=int(facts.get("remembered", -1)),
        )
        square = facts.get("square", 0.0)
        return replace(state, square=square, step=report.step) if square > 0 else state
