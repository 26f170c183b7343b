"""pace-async: pace without rounds. Nobody is waited for that the next step does not need, and nothing is thrown away.

Ours; docs/theory.md derives it. Everybody works all the time. Who answers to the current model counts in the next step,
and the step is made when waiting for one more answer no longer pays; who answers to an older one tells how its update
differs from the others', which is remembered (`fedpace.server.remembering`) and taken off the updates of those that
count. So the few fastest clients speak for everybody, and the slow ones are heard when they come.

- When to step. A step of weights a after t seconds since the last brings 1 - rho(a), and t / (1 - rho) is to be least,
  as in `pace`: over what is in hand, and over what would be if one waited for the next of those that train on the
  current model, by how long they are expected to take still.
- Error. rho = s a'Ga + nu sum a_i^2, with s and nu measured on pairs of clients as in `pace`, times the part of their
  disagreement that the memory leaves. The memory's own error adds to nu: what it holds of a client is as old as the
  client's last answer, and what all are compared with moves as those move who count. Late answers tell by how much.
- The first steps. Nothing is known at first, neither moments nor what clients agree on: the first answers are the
  warm-up. A client that was never heard has no point to match and counts for its own error, that of the pairs.
- Server steps are those of `pace`: Nesterov's momentum and FedExP's length, with their limits.

There is nothing to tune. Where busy clients cost something, `work_price` says how much, and `in_flight` bounds how many
work at a time; they take turns then, those whose answers are most overdue per second of their work first.
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
"""Answers in a step: one client shows no disagreement."""
ENDLESS = 1e6
"""Stands for the error of clients that agree on nothing."""
PATIENCE = 0.1
"""Of the time since the last step, what is waited at least before everything is looked at again."""
GROWTH = 0.2
"""Where no number of answers would do yet, so many more are awaited before everything is looked at again."""
LONGEST = 256
"""Most clients whose joint error is looked at: so many are worth no more than some fewer."""
AHEAD = 64
"""Of those that are still at work, so many are looked at: the step is made long before the others come."""


@dataclass(frozen=True)
class Known(Measured):
    """What is remembered from step to step."""

    left: float = 1.0
    """Part of the clients' squared disagreement that the server's memory leaves."""
    mean_age: float = 0.0
    """Steps since clients were heard."""
    drift: float = 0.0
    """Squared error that remembered differences have in common, per sum of squared weights."""
    remembered: int = -1
    """Clients that the server's memory holds; -1 = nobody says."""
    last: float = 0.0
    """When the last step was made."""
    most: int = 0
    """Clients that may be at work until the next step; 0 = not decided yet."""
    awaited: int = 0
    """Answers to the current model before which there is nothing to look at, unless time passes."""
    look: float = 0.0
    """When to look although they have not come."""


@dataclass(frozen=True)
class _Plan:
    """The best moment for the next step."""

    mixture: Mixture
    """Weights on the fresh answers in hand."""
    now: bool
    awaited: int
    """With how many of them to look again."""
    seconds: float
    """How long to wait for them at the most."""


@dataclass(frozen=True)
class PaceAsync(Scheme):
    """A step whenever waiting for more replies does not pay.

    Args:
        in_flight: most clients at work at a time; 0 = all that can be reached.
        work_price: seconds of training that one second of a client's work counts for: so many clients work at a time
            that the two together are least; 0 = work is free.
        ridge: added to the mean moment before it is inverted, in units of its mean eigenvalue.
        fedexp_exponent: exponent of FedExP's factor, by which disagreement lets steps be lengthened, momentum included:
            0 = not at all.
        memory_gib: room for what is remembered of clients, 4 bytes per client and parameter, and as much for past
            models' averages; beyond it those that were heard of longest ago are forgotten.
    """

    name: ClassVar[str] = "pace-async"
    renamed: ClassVar[Mapping[str, str]] = {"extrapolate": "fedexp_exponent"}
    """Former names of options: older experiments and records still use them."""
    needs: ClassVar[frozenset[Need]] = frozenset()
    uses: ClassVar[frozenset[Need]] = frozenset({Need.DELAY, Need.MOMENT, Need.TARGETS, Need.UPDATE})
    """Without updates it cannot tell how far clients disagree, and takes s for 1 and nu for 0."""
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
        """Nothing is measured yet."""
        return Known()

    def decide(self, state: Known, view: View, rng: np.random.Generator) -> tuple[Move, Known]:
        """Step if that is best now; let everybody work who does nothing."""
        hand = view.in_hand
        fresh = np.flatnonzero(hand.step == view.step)
        plan = None
        if fresh.size and (fresh.size >= state.awaited or view.now >= state.look or nobody_else(view, fresh)):
            points, state = self._points(state, view)
            plan = self._plan(state, view, points, fresh)
            state = replace(state, awaited=plan.awaited, look=view.now + plan.seconds)
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
        if apply is None:  # who has answered to this model has nothing to add to it
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
        """Return the state with how many may be at work."""
        most = self.in_flight or view.clients
        known = np.flatnonzero(view.delay > 0)  # nan = unknown
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
        """Return who starts: all, or of more than may be at work those whose answers are most overdue per second."""
        room = max(0, most - len(view.in_flight))
        if room >= rows.size:
            return rows
        heard = np.full(rows.size, -1) if view.update_step is None else view.update_step[rows]
        known = view.delay[rows] > 0  # others are asked first: it costs nothing, or says what it costs
        overdue = np.divide(view.step + 1.0 - heard, view.delay[rows], out=np.full(rows.size, math.inf), where=known)
        return np.sort(rows[np.lexsort((rows, -overdue))[:room]])

    def _points(self, state: Known, view: View) -> tuple[FloatArray, Known]:
        """Return a point per client, 0 where it is unknown, and the state with the newest pairs in it."""
        if view.moments is None:
            return np.zeros((view.clients, 1)), state
        points = view.moments.directions(ridge=self.ridge, shares=view.share)
        state = measured(state, view, points)  # type: ignore[assignment]
        return points, state

    def _plan(self, state: Known, view: View, points: FloatArray, fresh: IntArray) -> _Plan:
        """Find when the next step is best made: now, or after one of the answers that may still come."""
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
                break  # no error is below 0, so that nothing slower can be better
            cost = seconds / (1.0 - mixture.error) if mixture.error < 1 else math.inf
            if length >= FEWEST and cost < best:
                best, chosen = cost, length
        assert in_hand is not None
        # Nobody else works on this model, nor can begin to: waiting brings nothing, whatever the error.
        ended = nobody_else(view, fresh) and (fresh.size >= FEWEST or not len(flying))
        if ended or (chosen == fresh.size and math.isfinite(best)):
            return _Plan(in_hand, now=True, awaited=0, seconds=0.0)
        if not math.isfinite(best):
            return _Plan(in_hand, False, fresh.size + max(1, int(GROWTH * fresh.size)), patience(view) or math.inf)
        # Half of those that it takes say how far off the others are; who is awaited may be late, so time counts too.
        halfway = fresh.size + -(-(chosen - fresh.size) // 2)
        longest = max(float(after[chosen - 1]), PATIENCE * spent)
        return _Plan(in_hand, False, halfway, longest if longest > 0 else math.inf)

    def _errors(
        self, state: Known, view: View, points: FloatArray, rows: IntArray, fresh: IntArray
    ) -> tuple[FloatArray, float]:
        """Return points for `numerics.simplex`, the squared length of a mixture being its error, and their `own`."""
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
        # Who was never heard errs on its own, and by more: in a coordinate that no other has.
        extra = np.flatnonzero(squares > shared)
        apart = np.zeros((rows.size, extra.size))
        apart[extra, np.arange(extra.size)] = np.sqrt(squares[extra] - shared)
        return np.concatenate([table, apart], axis=1), shared

    @staticmethod
    def _remembered(state: Known, view: View) -> BoolArray:
        """(n,) of whom the server's memory tells something: without room for all, those that were heard last."""
        heard = np.asarray(view.participations > 0)
        if view.update_step is None or not 0 <= state.remembered < int(heard.sum()):
            return heard
        newest = np.lexsort((-np.where(heard, view.update_step, -1), ~heard))[: state.remembered]
        return heard & np.isin(np.arange(heard.size), newest)

    def observe(self, state: Known, report: Report) -> Known:
        """Take over what the server step measured."""
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
