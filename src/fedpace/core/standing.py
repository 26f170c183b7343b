"""The state of a coordinator: clients, ledger, tasks in flight and clock. `coordinator.py` makes the decisions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedpace._base.checks import BoolArray, FloatArray, IntArray, listed, real
from fedpace._base.errors import InfeasibleError, InputError
from fedpace._base.rng import stream
from fedpace.core.flight import Flight
from fedpace.core.folding import corrected_claims
from fedpace.core.policies import Rounds
from fedpace.core.progress import Progress
from fedpace.core.protocols import MomentStore
from fedpace.core.roster import Roster, Settings
from fedpace.core.tasks import Kind, Move, Policy, Step, Task, Wait
from fedpace.core.types import (
    ClientId,
    Cohort,
    Diagnostics,
    Need,
    ProbeKind,
    Selector,
    View,
    check_traits,
    facts_wanted,
)
from fedpace.core.widths import Widths, forget_moments, forget_updates
from fedpace.trust.bounds import SKETCH


class Standing(Roster):
    """Adds the policy, its state, the clock and the tasks in flight to the roster.

    Args:
        policy: a Policy; or a Selector, which runs in synchronous rounds.
        settings: seed, shares, warm-up and deadline.
        moments: an empty store for feature moments; None = the default store.
    """

    def __init__(
        self, policy: Policy[Any] | Selector[Any], settings: Settings, moments: MomentStore | None = None
    ) -> None:
        check_traits(policy)
        super().__init__(settings, moments, policy.accumulates)
        self.policy: Any = policy if hasattr(policy, "decide") else Rounds(policy, self.ledger_name, self._bound)
        self.state: Any = self.policy.init()
        self.at = Progress()
        self.flight = Flight()
        self.widths = Widths()
        self._warned = False
        self._step: Step | None = None
        """The step that is due; None once `stepped` was called."""
        self._bounded: frozenset[int] = frozenset()
        """Tasks of that step with updates that `bound` has clipped: their sketches are not clipped again."""

    @property
    def step(self) -> int:
        """Number of steps made, which is the version of the shared model."""
        return self.at.step

    @property
    def now(self) -> float:
        """Current time in seconds, virtual or real."""
        return self.at.now

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks in flight."""
        return tuple(self.flight.tasks.values())

    @property
    def wanted(self) -> frozenset[Need]:
        """Facts that clients should report: all that the policy needs or uses."""
        return facts_wanted(self.policy)

    @property
    def goes_on(self) -> bool:
        """Whether stragglers that miss the end of a round continue, and report when they finish (`hear_late`)."""
        return self.settings.hear_late and bool(self.policy.rounds)

    @property
    def sated(self) -> bool:
        """Whether the policy's wait is over, so that `due` would act now without further answers."""
        return self.at.wait is not None and self._over(self.at.wait)

    @property
    def wake_at(self) -> float:
        """Time at which to call `due` even if no answer arrives; infinity = only an answer or a new client matters."""
        return self.at.until if self.at.wait is not None and self._counted(self.at.wait)[1] else math.inf

    def _over(self, wait: Wait) -> bool:
        """Return whether the wait is over.

        It is over when no task is in flight. With at least one answer, it is also over at the quorum or the deadline.
        """
        flying, held = self._counted(wait)
        quorum = 0 < wait.answers <= held
        return not flying or (held > 0 and (quorum or self.now >= self.at.until))

    def _counted(self, wait: Wait) -> tuple[int, int]:
        """Return how many tasks of the wait are in flight, and how many are answered but not yet used."""
        return self.flight.of(self.step) if wait.fresh else (self.flight.flying, self.flight.held)

    def leave(self, clients: Iterable[ClientId]) -> None:
        """Remove clients and their tasks, at any time."""
        gone = listed(clients, "the clients that leave")
        explained = list(self.at.turn.why.reasons)
        named = dict(zip(explained, self.ledger.ids_of(np.array(explained, np.int64)), strict=True))
        super().leave(gone)
        left = set(gone)
        self.at.turn.move_up({row: self.ledger.row(c) for row, c in named.items() if c in self.ledger})
        self.widths.forget(left)
        self._lose(left)
        if (step := self._step) is not None:  # clients that left do not count as failed in it
            self._step = replace(step, dropped=tuple(task for task in step.dropped if task.client not in left))

    def wait_at_least(self, seconds: float) -> None:
        """Extend the deadline of the current wait to at least `seconds` from now, for time that a transport needs."""
        self.at.until = max(self.at.until, self.now + seconds)

    def forget_moments(self) -> None:
        """Forget all feature moments, also in answers not yet used; clients are asked for them again."""
        forget_moments(self.ledger)
        self.flight.forget_moments()

    def forget_updates(self) -> None:
        """Forget all update sketches, also in answers not yet used."""
        forget_updates(self.ledger)
        self.flight.forget_updates()

    def advance(self, now: float | None) -> None:
        """Set the clock to `now`, and add the work of the clients in flight; None leaves the clock unchanged."""
        if now is None or (type(now) is float and now == self.now):  # common: several answers at one instant
            return
        seconds = real(now, "now")
        if not (math.isfinite(seconds) and seconds >= self.now):
            raise InputError(f"time must not run backwards: it was {self.now} s, but now = {now} came")
        # Tasks start and end only at events, so every client in flight worked for this whole interval.
        self.at.turn.work += len(self.flight.tasks) * (seconds - self.now)
        self.at.now = seconds

    def start(
        self,
        kind: Kind,
        rows: IntArray,
        weights: FloatArray | None = None,
        *,
        probe: ProbeKind = "loss",
        samples: int = 0,
        version: int | None = None,
    ) -> tuple[Task, ...]:
        """Start one task for each client in `rows`, put them in flight and return them.

        Args:
            kind: of all these tasks.
            rows: (k,) rows of the clients.
            weights: (k,) weights from the policy; None = 0.
            probe: what a probe asks for.
            samples: samples that a probe uses; 0 = all.
            version: version of the model that the clients get; None = the current version.
        """
        step, now = self.step if version is None else version, self.now
        weighed = np.zeros(rows.size) if weights is None else weights
        jobs = self.ledger.columns["started"]
        entries = zip(self.ledger.ids_of(rows), weighed.tolist(), self._facts(rows), jobs[rows].tolist(), strict=True)
        started = tuple(
            Task(number, client, kind, step, now, weight, facts, probe, samples, job)
            for number, (client, weight, facts, job) in enumerate(entries, start=self.at.next_task)
        )
        jobs[rows] += kind == "train"
        self.at.next_task += len(started)
        self.at.turn.sent += len(started)
        self.flight.start(started)
        if kind == "measure":
            self.ledger.columns["asked"][rows] = True
            self.at.turn.warmed += [task.client for task in started]
        elif kind == "probe":
            self.at.turn.probed += [task.client for task in started]
        return started

    def _facts(self, rows: IntArray) -> list[frozenset[Need]]:
        """Return the facts to ask each client for; a feature moment only if it is due (`moments_every`)."""
        wanted = self.wanted
        if Need.MOMENT not in wanted:
            return [wanted] * rows.size
        last, every = self.ledger.columns["moment_step"][rows], self.settings.moments_every
        due = (last < 0) | ((self.step - last >= every) if every > 0 else False)
        without = wanted - {Need.MOMENT, Need.TARGETS}
        return [wanted if asked else without for asked in due.tolist()]

    def _bound(self, cohort: Cohort, view: View) -> Cohort:
        """Return the cohort with capped weights, and with the corrected claims of clients among its reasons."""
        trust = self.ledger.trust
        if not trust.on:
            return cohort
        weights = cohort.weights
        if cohort.mode == "average":
            capped = trust.cap_weights(cohort.clients, weights, view.share, self.step + 1)
            total = float(capped.sum())
            weights = capped / total if capped is not weights and total > 0 else weights
        facts, reasons = corrected_claims(cohort, self.ledger.columns["delay"], trust)
        if not facts and weights is cohort.weights:
            return cohort
        why = replace(cohort.why, facts={**cohort.why.facts, **facts}, reasons={**cohort.why.reasons, **reasons})
        return replace(cohort, weights=weights, why=why)

    def view(self, *, now: float | None = None, available: Iterable[ClientId] | None = None) -> View:
        """Return the View that the policy would get if it decided now."""
        shown = self.view_of(self.reachable(available) & self.ready())
        return shown if now is None else replace(shown, now=now)

    def ready(self) -> BoolArray:
        """(n,) True for clients without a task for which every fact that the policy needs is known."""
        return np.asarray(self.ledger.known(self.policy.needs) & ~self.busy())

    def busy(self) -> BoolArray:
        """(n,) True for clients with a task in flight."""
        busy = np.zeros(len(self.ledger), dtype=np.bool_)
        busy[self.ledger.rows(task.client for task in self.flight.tasks.values())] = True
        return busy

    def view_of(self, available: BoolArray) -> View:
        """Return the View for the policy when the clients in the mask `available` can be chosen."""
        flying, held, failed = self.flight.tables(self.ledger.rows, self._clipped_sketches)
        known = self.ledger.facts() | {"in_flight": flying, "in_hand": held, "failed": failed}
        return View(self.step, self.now, available, self.shares(), **known)

    def decide(self, view: View) -> Move:
        """Return the policy's next move.

        If a scheme for rounds finds no feasible cohort while trust is on, the move starts all available clients: false
        claims of clients must not stop training.
        """
        try:
            move: Move
            move, self.state = self.policy.decide(self.state, view, self._rng())
        except InfeasibleError as problem:
            if not (self.ledger.trust.on and self.policy.rounds):
                raise
            why = Diagnostics(status=f"all that can be reached, since {problem}")
            return Move(view.candidates, self.among(view.candidates), why=why)
        return move

    @property
    def excluded(self) -> set[ClientId]:
        """Clients that get no tasks, because their updates opposed the validation set; `readmit` undoes it."""
        return set(self.ledger.ids_of(np.flatnonzero(~self._admitted())))

    def readmit(self, clients: Iterable[ClientId] | None = None) -> list[ClientId]:
        """End the exclusion of clients, and return the clients that were excluded.

        Use it when you know that a client is honest or was repaired. The evidence against these clients and the weight
        that they have used are reset too.

        Args:
            clients: None = all clients.
        """
        rows = np.arange(len(self.ledger)) if clients is None else self.ledger.rows(listed(clients, "the clients"))
        trust = self.ledger.trust
        readmitted = self.ledger.ids_of(rows[trust.columns["excluded"][rows] > 0])
        trust.readmit(rows)
        return list(readmitted)

    def _clipped_sketches(self, sketches: FloatArray, clients: Sequence[ClientId]) -> FloatArray:
        """Return the sketches of unused updates, clipped as the step would clip them, for the policy's View."""
        known = np.flatnonzero(~np.isnan(sketches).any(axis=1))
        trust = self.ledger.trust
        if not trust.on or not known.size:
            return sketches
        rows = self.ledger.rows(clients[place] for place in known.tolist()).tolist()
        with np.errstate(over="ignore"):
            lengths = np.linalg.norm(sketches[known], axis=1)
        factors = trust.clip_factors(rows, lengths, SKETCH, step=self.step, remember=False)
        if (factors == 1).all():
            return sketches
        sketches = sketches.copy()
        sketches[known] *= factors[:, None]
        return sketches

    def _lose(self, clients: set[ClientId]) -> None:
        """Remove the tasks and the unused answers of clients, count them as wasted, and shorten the wait."""
        flying, held = self.flight.flying, self.flight.held
        self.flight.lose(clients)
        lost = held - self.flight.held
        self.at.turn.wasted += flying - self.flight.flying + lost
        if lost and (wait := self.at.wait) is not None and wait.answers and not self.policy.rounds:
            # The wait counts answers in hand. Lower it by the lost ones, so that it needs no more new answers.
            self.at.wait = replace(wait, answers=max(1, wait.answers - lost))

    def _admitted(self) -> BoolArray:
        return self.ledger.trust.admitted(np.ones(len(self.ledger), dtype=np.bool_))

    def _rng(self) -> np.random.Generator:
        """Return the random stream of this decision, keyed by the step and the decisions since then."""
        key = (self.at.decisions,) if self.at.decisions else ()
        self.at.decisions += 1
        return stream(self.settings.seed, "select", self.step, *key)
