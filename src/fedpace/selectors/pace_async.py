"""pace-async: asynchronous training in which each step waits only for the answers that it needs.

Ours; docs/theory.md derives it. All clients train all the time. Answers to the current model count in the next step,
and the server makes the step as soon as waiting for one more answer no longer pays. A late answer, to an older model,
is not wasted: it shows how the client's update differs from the others. The server remembers this difference and
predicts the client's later updates with it (`fedpace.server.memory_corrected`). So a few fast clients can represent all
clients, and slow clients contribute whenever they answer.

- When to step. A step made t seconds after the last one, with relative squared error rho, brings progress 1 - rho. The
  server minimises t / (1 - rho). It compares stepping now with waiting for each of the next answers to the current
  model, at their expected arrival times.
- Error. Client i errs by its own sigma_i^2: the variance between clients' updates, times the part of it that the memory
  does not explain if the client was heard before. Let F be the clients that answered, W their share of the weight, and
  g the mean distance that the model moved since the clients' last answers. Then

      rho = (1 - W^2) / sum_F sigma_i^-2  +  sum_F w_i^2 sigma_i^2  +  (drift g (1 - W))^2 / |u|^2.

  The first two terms are noise, with weights a_i proportional to sigma_i^-2. The last term is the error of the memory.
  It is the safeguard: the further the model moves without hearing from most of the weight, the more clients must answer
  before the next step. It does not need late answers: until they show the drift, the worst case counts.
- First steps. At first the server does not know the clients' disagreement. It measures it on sketches of the first
  answers.
- Server step. Nesterov momentum and FedExP's step length, as in `pace`, with the same limits.

The scheme uses updates and arrival times only. If client work costs something, set `work_price` to its price.
`in_flight` limits how many clients train at a time. With a limit, clients take turns: those with the most overdue
answers per second of work go first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np

from fedpace._base.checks import BoolArray, FloatArray, IntArray
from fedpace._base.options import FINITE, Above, AtLeast, Between
from fedpace.core.server_rule import ServerRule
from fedpace.core.tasks import Apply, Move, Wait
from fedpace.core.types import Accumulator, Diagnostics, Need, Report, Scheme, View
from fedpace.numerics.arrivals import LEAST, Lateness
from fedpace.selectors._remembered import AnswerLateness
from fedpace.server._row_store import Precision
from fedpace.server.memory_corrected import MemoryCorrected

FEWEST = 2
"""Smallest number of answers per step: one client shows no disagreement."""
LEAST_ERROR, LARGEST_ERROR = 1e-9, 1e6
"""Bounds of a client's squared error, for clients that agree exactly or on nothing."""
LEAST_WAIT = 1e-3
"""The shortest wait, as a part of the fastest client's delay, or of a second if that is less."""
PATIENCE = 0.1
"""Wait at least this part of the time since the last step before planning again."""
GROWTH = 0.2
"""If no number of answers gives an error below 1 yet, wait for this fraction more of them before planning again."""
REACH = 6.0
"""How far the model may move since the clients' last answers, in mean lengths of the clients' updates."""
LATE = 2.0
"""A client is no longer waited for after this many times its expected delay."""
ELASTICITY = 0.3
"""By how many percent an update becomes longer with one percent more local steps. Measured: 0.2 to 0.5
(docs/theory.md)."""
KNOWN_SHARE = 0.9
"""Share of the clients whose delays must be known before `work = "adaptive"` changes the work."""
LEAST_WORK, MOST_WORK = 0.5, 1.0
"""Bounds of the work that `work = "adaptive"` chooses. With less, single minibatches dominate updates, and the memory
cannot predict them. More did not pay even where work is nearly free (docs/theory.md)."""
NUMBERS = 1.3
"""Ratio between the numbers of clients in flight that `work_price` compares; costs are flat around their minimum."""


@dataclass(frozen=True)
class AsyncState:
    """State of pace-async."""

    disagreement: float = 0.0
    """Variance between clients' updates, divided by |u|^2; 0 until measured."""
    disagreement_left: float = 1.0
    """Part of that variance that the server's memory does not explain."""
    memory_error: float = 0.0
    """Squared error of the memory, divided by |u|^2, if no client answers."""
    reach_spent: float = 0.0
    """Part of the distance that the model may move on its memory which the next step will have used up."""
    mean_age: float = 0.0
    """Mean number of steps since the clients' last answers."""
    remembered: int = -1
    """Number of clients in the server's memory; -1 = unknown."""
    last_step: float = 0.0
    """Time of the last step."""
    max_in_flight: int = 0
    """Largest number of clients in flight until the next step; 0 = not decided yet."""
    plan_at_answers: int = 0
    """Number of answers to the current model at which to plan again."""
    plan_at_time: float = 0.0
    """Time at which to plan again even with fewer answers."""


class _Errors(NamedTuple):
    """Expected squared errors of steps with the first 1, 2, ... of some clients, relative to |u|^2."""

    squares: FloatArray
    """(k,) each client's own squared error."""
    totals: FloatArray
    """(k,) rho of a step with the first 1, 2, ... clients."""

    def weights(self, count: int) -> FloatArray:
        """(count,) the best weights for the first `count` clients."""
        inverse = 1.0 / self.squares[:count]
        return np.asarray(inverse / inverse.sum())


@dataclass(frozen=True)
class _Plan:
    """Whether to step now, and if not, when to plan again."""

    error: float
    """rho of a step with the fresh answers in hand."""
    now: bool
    answers: int = 0
    """Number of fresh answers at which to plan again."""
    seconds: float = 0.0
    """Longest time to wait for them."""


@dataclass(frozen=True)
class PaceAsync(Scheme):
    """A step whenever waiting for more replies does not pay.

    Args:
        in_flight: largest number of clients that train at a time; 0 = all that can be reached.
        work_price: price of one second of a client's work, in seconds of training time. The scheme chooses the number
            of clients in flight that minimises time and work together; 0 = work is free.
        fedexp_exponent: exponent of FedExP's factor, which lengthens steps when clients disagree; momentum counts as
            part of the factor. 0 = do not lengthen steps.
        work: how much clients train. `fixed`: the configured local training. `adaptive`: the same part of it for all
            clients, chosen from the measured parts of their delays (docs/theory.md, "How much to train"); the host must
            offer `Need.WORK`.
        memory_gib: memory for the clients' remembered differences, and the same again for the references of past
            models. When it is full, the server forgets the clients that it heard from longest ago.
        memory: how differences are stored: `float32`, 4 bytes per client and parameter; `16bit`, `8bit` or `4bit`,
            about 2, 1 and 0.53 bytes; `auto`, the most bits in which all clients have room.
        memory_folder: folder for the differences, as mapped files without names; empty = in memory.
    """

    name: ClassVar[str] = "pace-async"
    needs: ClassVar[frozenset[Need]] = frozenset()
    uses: ClassVar[frozenset[Need]] = frozenset({Need.DELAY, Need.UPDATE})
    """Without sketches of updates, the first step assumes that clients disagree by as much as they agree."""
    rounds: ClassVar[bool] = False
    own_server: ClassVar[str] = "fedbuff"
    sum_sizes: ClassVar[tuple[str, ...]] = ("in_flight",)
    accumulates: ClassVar[tuple[Accumulator, ...]] = (AnswerLateness(),)

    in_flight: Annotated[int, AtLeast(0)] = 0
    work_price: Annotated[float, AtLeast(0), FINITE] = 0.0
    fedexp_exponent: Annotated[float, Between(0, 1)] = 1.0
    work: Literal["fixed", "adaptive"] = "fixed"
    memory_gib: Annotated[float, Above(0), FINITE] = 1.0
    memory: Precision = "auto"
    memory_folder: str = ""

    @property
    def sets_work(self) -> bool:
        """Whether the scheme decides how much each client trains."""
        return self.work == "adaptive"

    @property
    def server(self) -> ServerRule[Any] | None:
        """The server step that this scheme uses by default; None = the plain average."""
        return MemoryCorrected(
            self.fedexp_exponent, self.memory_gib, REACH, memory=self.memory, memory_folder=self.memory_folder
        )

    def init(self) -> AsyncState:
        """Return the state before the first step."""
        return AsyncState()

    def decide(self, state: AsyncState, view: View, rng: np.random.Generator) -> tuple[Move, AsyncState]:
        """Step if waiting does not pay, and start the idle clients."""
        hand = view.in_hand
        fresh = np.flatnonzero(hand.step == view.step)
        due = fresh.size >= state.plan_at_answers or view.now >= state.plan_at_time or all_answered(view, fresh)
        plan, apply = None, None
        facts: dict[str, Any] = {}
        if fresh.size and due:
            plan, weights = self._plan(state, view, fresh)
            # A wait of almost nothing would end at once, in the same state, and would be planned again for ever.
            shortest = LEAST_WAIT * float(np.nanmin(view.delay, initial=1.0))
            plan_at = view.now + max(plan.seconds, shortest)
            state = replace(state, plan_at_answers=plan.answers, plan_at_time=plan_at)
            if plan.now:
                every = np.zeros(len(hand))
                every[fresh] = weights
                apply = Apply(hand.ids, every)
                facts = {
                    "rho": plan.error,
                    "left": state.disagreement_left,
                    "memory error": state.memory_error,
                    "fresh": int(fresh.size),
                    "late": len(hand) - int(fresh.size),
                    "mean age": state.mean_age,
                }
                state = replace(state, last_step=view.now, plan_at_answers=0, plan_at_time=0.0)
        if apply is not None or not state.max_in_flight:
            state = replace(state, max_in_flight=self._max_in_flight(state, view))
        rows = view.candidates
        if apply is None:  # clients that answered this model wait for the next one
            answered = np.zeros(view.clients, dtype=np.bool_)
            answered[hand.clients[fresh]] = True
            rows = rows[~answered[rows]]
        start = self._starting(view, rows, state.max_in_flight)
        unused = 0 if apply is not None else len(hand)
        waiting = fresh.size and apply is None and math.isfinite(state.plan_at_time)
        wait = Wait(unused + 1, state.plan_at_time - view.now if waiting else math.inf)
        turns = state.max_in_flight < view.clients
        reasons = dict.fromkeys(
            start.tolist(), "its answer is the most overdue" if turns else "at work whenever it can be"
        )
        why = Diagnostics(objective=plan.error if plan else None, facts=facts, reasons=reasons)
        work = work_of(view, start) if self.sets_work else None
        return Move(start, np.zeros(start.size), apply, wait=wait, why=why, work=work), state

    def _max_in_flight(self, state: AsyncState, view: View) -> int:
        """Return the largest number of clients in flight until the next step."""
        most = self.in_flight or view.clients
        known = np.flatnonzero(view.delay > 0)  # NaN = unknown
        if not self.work_price or not known.size:
            return most
        order = known[np.lexsort((known, view.delay[known]))]
        errors = self._errors(state, view, order, np.empty(0, dtype=np.int64)).totals
        return min(most, best_in_flight(self.work_price, view.delay[order], errors, max(FEWEST, view.minimum)))

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

    def _plan(self, state: AsyncState, view: View, fresh: IntArray) -> tuple[_Plan, FloatArray]:
        """Return whether to step now or when to plan again, and the weights of the fresh answers."""
        hand, flying = view.in_hand, view.in_flight
        going = np.flatnonzero(flying.step == view.step)
        after = remaining(view, going)
        order = np.lexsort((going, after))
        going, after = going[order], after[order]
        errors = self._errors(state, view, np.concatenate([hand.clients[fresh], flying.clients[going]]), fresh)
        weights, error = errors.weights(fresh.size), float(errors.totals[fresh.size - 1])
        spent = view.now - state.last_step
        rho = errors.totals[fresh.size - 1 :]
        seconds = spent + np.concatenate([[0.0], after])
        fewest = max(FEWEST, view.minimum)
        openable = fresh.size + np.arange(rho.size) >= fewest
        cost = np.divide(seconds, 1.0 - rho, out=np.full(rho.size, math.inf), where=(rho < 1) & openable)
        best = int(np.argmin(cost))
        finite_best = math.isfinite(float(cost[best]))
        # No other client trains or can start on this model, so waiting brings nothing, whatever the error.
        ended = all_answered(view, fresh) and (fresh.size >= fewest or (view.minimum <= 1 and not len(flying)))
        if ended or (finite_best and best == 0):
            return _Plan(error, now=True), weights
        if not finite_best:
            more = max(1, int(GROWTH * fresh.size))
            return _Plan(error, False, fresh.size + more, patience(view) or math.inf), weights
        # Plan again at half of the missing answers: they show how late the others will be. An awaited client may fail,
        # so a time limit applies too.
        longest = max(float(after[best - 1]), PATIENCE * spent)
        return _Plan(error, False, fresh.size + -(-best // 2), longest if longest > 0 else math.inf), weights

    def _errors(self, state: AsyncState, view: View, rows: IntArray, fresh: IntArray) -> _Errors:
        """Return the expected errors of steps with the first 1, 2, ... of the clients `rows`."""
        variance = state.disagreement
        if not variance > 0:
            variance = disagreement(view.in_hand.updates(), fresh) if fresh.size else 1.0
        heard = self._remembered(state, view)
        squares = np.where(heard[rows], state.disagreement_left, 1.0) * min(variance, LARGEST_ERROR)
        squares = np.clip(squares, LEAST_ERROR, LARGEST_ERROR)
        shares = view.share[rows]
        everybody = float(view.share[heard].sum()) + np.cumsum(np.where(heard[rows], 0.0, shares))
        spoken = np.divide(np.cumsum(shares), everybody, out=np.zeros(rows.size), where=everybody > 0)
        spoken = np.minimum(spoken, 1.0)
        own = np.divide(np.cumsum(shares**2 * squares), everybody**2, out=np.zeros(rows.size), where=everybody > 0)
        noise = (1 - spoken**2) / np.cumsum(1.0 / squares) + own
        moved = state.reach_spent * self._unheard(view, rows, heard)
        return _Errors(squares, noise + state.memory_error * (1 - spoken) ** 2 + moved**2)

    @staticmethod
    def _unheard(view: View, rows: IntArray, heard: BoolArray) -> FloatArray:
        """(k,) the part of the memory's error that is left after the answers of the first 1, 2, ... clients.

        The error of a client's memory is proportional to its share and to the number of steps since its last answer.
        """
        age = np.ones(view.clients) if view.update_step is None else view.step - view.update_step
        error = np.where(heard, view.share * age, 0.0)
        total = float(error.sum())
        return np.maximum(1 - np.cumsum(error[rows]) / total, 0.0) if total > 0 else np.zeros(rows.size)

    @staticmethod
    def _remembered(state: AsyncState, view: View) -> BoolArray:
        """(n,) True for clients in the server's memory: if not all fit, those that were heard last."""
        heard = np.asarray(view.participations > 0)
        if view.update_step is None or not 0 <= state.remembered < int(heard.sum()):
            return heard
        newest = np.lexsort((-np.where(heard, view.update_step, -1), ~heard))[: state.remembered]
        return heard & np.isin(np.arange(heard.size), newest)

    def observe(self, state: AsyncState, report: Report) -> AsyncState:
        """Copy what the server step measured into the state."""
        facts = report.step_facts
        return replace(
            state,
            disagreement=facts.get("disagreement", 0.0),
            disagreement_left=facts.get("disagreement_left", 1.0),
            memory_error=min(facts.get("memory_error", 0.0), LARGEST_ERROR),
            reach_spent=min(facts.get("reach_spent", 0.0), 1e3),
            mean_age=facts.get("mean_age", 0.0),
            remembered=int(facts.get("remembered", -1)),
        )


# -- forecasts -----------------------------------------------------------------------------------------------------


def all_answered(view: View, fresh: IntArray) -> bool:
    """Return whether all possible answers to the current model are in hand, so that waiting brings nothing.

    Clients that failed on the current model do not count, even if they are tried again. Otherwise the server would wait
    forever for a client that always fails.

    Args:
        view: the scheme's view of the fleet.
        fresh: positions, among the answers in hand, of answers to the current model.
    """
    going = view.in_flight.clients[view.in_flight.step == view.step]
    failed = view.failed.clients[view.failed.step == view.step]
    if not np.isin(going, failed).all() or patience(view) > 0:
        return False
    return bool(np.isin(view.candidates, np.concatenate([view.in_hand.clients[fresh], failed])).all())


def patience(view: View) -> float:
    """Return how long to wait for clients that train on older models; each starts on this one when it answers."""
    flying = view.in_flight
    old = flying.step < view.step
    left = LATE * _expected(view)[old] - (view.now - flying.began[old])
    return float(np.nanmax(left, initial=0.0))  # clients with unknown delay count 0


def remaining(view: View, going: IntArray) -> FloatArray:
    """Return the expected remaining seconds of the tasks `going`, given that they have not finished yet."""
    flying = view.in_flight
    expected = np.nan_to_num(_expected(view)[going], nan=math.inf)  # unknown delays sort last
    passed = view.now - flying.began[going]
    answers = view.accumulated.get(AnswerLateness.name)
    if answers is None or len(answers) < LEAST:
        return np.where(passed < expected, expected - passed, passed)
    lateness = Lateness.estimated(answers[:, 0], answers[:, 1] > 0)
    mass = np.concatenate([np.cumsum(lateness.mass[::-1])[::-1], [0.0]])
    moment = np.concatenate([np.cumsum((lateness.mass * lateness.ratios)[::-1])[::-1], [0.0]])
    ratio = np.divide(passed, expected, out=np.full(passed.size, math.inf), where=expected > 0)
    later = np.searchsorted(lateness.ratios, ratio, side="right")
    # A task later than all earlier answers is expected to take as long again as it has taken so far.
    seen = mass[later] > 0
    longest = np.divide(moment[later], mass[later], out=np.zeros(passed.size), where=seen) * expected - passed
    return np.maximum(np.where(seen, longest, passed), 0.0)


def _expected(view: View) -> FloatArray:
    """Return the expected seconds of each task in flight with its work; NaN = unknown."""
    flying = view.in_flight
    extra = flying.work - 1.0 if flying.work.size else 0.0
    return np.asarray(view.delay[flying.clients] + extra * view.growing[flying.clients])


def work_of(view: View, rows: IntArray) -> FloatArray:
    """Return the work of the clients `rows`: the same for all with a known delay, and 1 for the others.

    It is 1 for all until most clients are known: the first that answer are the fast ones, and mislead.

    A task takes rest + work x compute seconds, and its update is about work^elasticity as long. The work that
    maximises progress per second is rest / compute x elasticity / (1 - elasticity). Rest and compute are means over
    all clients by their shares: how often clients answer limits the steps as much as how soon the first do.
    """
    known = view.delay > 0  # NaN = unknown
    compute = float(view.share[known] @ view.growing[known])
    rest = float(view.share[known] @ (view.delay - view.growing)[known])
    best = rest / compute * ELASTICITY / (1 - ELASTICITY) if compute > 0 else MOST_WORK
    if float(view.share[known].sum()) < KNOWN_SHARE:
        return np.ones(rows.size)
    return np.where(known[rows], min(max(best, LEAST_WORK), MOST_WORK), 1.0)


def disagreement(updates: FloatArray | None, fresh: IntArray) -> float:
    """Return the variance between updates, relative to the squared length of their common part.

    Infinite with fewer than two updates, or if they have nothing in common; 1 if the host reports no updates.
    """
    if updates is None:
        return 1.0
    told = updates[fresh]
    told = told[~np.isnan(told).any(axis=1)]
    if len(told) < 2:
        return math.inf
    gram = told @ told.T
    count = len(told)
    within = float(np.trace(gram)) / count
    between_them = (float(gram.sum()) - float(np.trace(gram))) / (count * (count - 1))
    return (within - between_them) / between_them if between_them > 0 else math.inf


# -- the number of clients in flight -------------------------------------------------------------------------------


def spaced_numbers(most: int) -> list[int]:
    """Return the numbers of clients to compare, up to `most`: all small numbers, and fewer of the large ones."""
    found = [1]
    while found[-1] < most:
        found.append(min(most, max(found[-1] + 1, int(found[-1] * NUMBERS))))
    return found


def best_in_flight(price: float, delays: FloatArray, errors: FloatArray, fewest: int) -> int:
    """Return the number n of clients in flight that minimises (1 + price n) t / (1 - rho): time plus priced work.

    Clients take turns, so that all are heard, fast ones more often. Of the l clients with a delay of at most t seconds,
    l n / m are in flight at the right time.

    Args:
        price: seconds of training time that one second of a client's work is worth.
        delays: (m,) expected delays, ascending.
        errors: (m,) rho of a step with 1, 2, ... clients; values between are interpolated.
        fewest: smallest number of answers per step.
    """
    count = len(delays)
    prefixes = np.array(spaced_numbers(count))
    lengths = np.log(np.arange(1, count + 1))
    best, chosen = np.inf, count
    for at_work in spaced_numbers(count):
        answers = prefixes * at_work / count
        rho = np.interp(np.log(answers), lengths, errors)
        possible = (answers >= min(fewest, at_work)) & (rho < 1)
        if not possible.any():
            continue
        seconds = np.min(delays[prefixes - 1][possible] / (1.0 - rho[possible]))
        cost = _log(1.0 + price * at_work) + _log(float(seconds))  # logarithms: no price overflows
        if cost < best:
            best, chosen = cost, at_work
    return max(chosen, min(fewest, count))


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
