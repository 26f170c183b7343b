"""Where training stands: the clients, what is known of them, and the tasks in flight. Nothing is decided here."""

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
    """A roster with tasks in flight.

    Args:
        policy: a Policy, or a Selector, which then works in rounds.
        settings: seed, shares, warm-up and deadline.
        moments: an empty store of moments, where not the usual one.
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
        """The step that is due, until it is made."""
        self._bounded: frozenset[int] = frozenset()
        """Tasks of that step whose updates were bounded: sketches of them need not be."""

    @property
    def step(self) -> int:
        """Steps made: the version of the shared model."""
        return self.at.step

    @property
    def now(self) -> float:
        """Seconds, virtual or real."""
        return self.at.now

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All in flight."""
        return tuple(self.flight.tasks.values())

    @property
    def wanted(self) -> frozenset[Need]:
        """What clients should report."""
        return facts_wanted(self.policy)

    @property
    def goes_on(self) -> bool:
        """Whether who misses a round's end is heard later."""
        return self.settings.hear_late and bool(self.policy.rounds)

    @property
    def sated(self) -> bool:
        """Whether what is in hand ends the wait: the policy may be asked before anything else is looked for."""
        return self.at.wait is not None and self._over(self.at.wait)

    @property
    def wake_at(self) -> float:
        """When to call `due` although nothing has come: infinity = only an answer, or a client, changes anything."""
        return self.at.until if self.at.wait is not None and self._counted(self.at.wait)[1] else math.inf

    def _over(self, wait: Wait) -> bool:
        """Whether the policy is to be asked again: never with empty hands while somebody may still answer."""
        flying, held = self._counted(wait)
        quorum = 0 < wait.answers <= held
        return not flying or (held > 0 and (quorum or self.now >= self.at.until))

    def _counted(self, wait: Wait) -> tuple[int, int]:
        """How many tasks that the wait is for are in flight, and how many in hand."""
        return self.flight.of(self.step) if wait.fresh else (self.flight.flying, self.flight.held)

    def leave(self, clients: Iterable[ClientId]) -> None:
        """Forget clients, at any time, and what they were doing."""
        gone = listed(clients, "the clients that leave")
        explained = list(self.at.turn.why.reasons)
        named = dict(zip(explained, self.ledger.ids_of(np.array(explained, np.int64)), strict=True))
        super().leave(gone)
        left = set(gone)
        self.at.turn.move_up({row: self.ledger.row(c) for row, c in named.items() if c in self.ledger})
        self.widths.forget(left)
        self._lose(left)
        if (step := self._step) is not None:  # it is made, but nobody is blamed in it who left
            self._step = replace(step, dropped=tuple(task for task in step.dropped if task.client not in left))

    def wait_at_least(self, seconds: float) -> None:
        """Let no deadline end the wait that has begun before so many seconds: what a transport needs for itself."""
        self.at.until = max(self.at.until, self.now + seconds)

    def forget_moments(self) -> None:
        """Forget everybody's moments, those in hand too: they are due again."""
        forget_moments(self.ledger)
        self.flight.forget_moments()

    def forget_updates(self) -> None:
        """Forget everybody's sketches of updates, those in hand too."""
        forget_updates(self.ledger)
        self.flight.forget_updates()

    def advance(self, now: float | None) -> None:
        """Note the time."""
        if now is None or (type(now) is float and now == self.now):  # as after most answers of one instant
            return
        seconds = real(now, "now")
        if not (math.isfinite(seconds) and seconds >= self.now):
            raise InputError(f"time must not run backwards: it was {self.now} s, but now = {now} came")
        # Time passes between two events only, so that everybody in flight has worked through all of it.
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
        """Begin tasks."""
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
        """What clients are asked for: a moment only where one is due."""
        wanted = self.wanted
        if Need.MOMENT not in wanted:
            return [wanted] * rows.size
        last, every = self.ledger.columns["moment_step"][rows], self.settings.moments_every
        due = (last < 0) | ((self.step - last >= every) if every > 0 else False)
        without = wanted - {Need.MOMENT, Need.TARGETS}
        return [wanted if asked else without for asked in due.tolist()]

    def _bound(self, cohort: Cohort, view: View) -> Cohort:
        """Return a cohort whose weights are within the caps, and say which claims were corrected."""
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
        """Return what the policy would be shown."""
        shown = self.view_of(self.reachable(available) & self.ready())
        return shown if now is None else replace(shown, now=now)

    def ready(self) -> BoolArray:
        """(n,) of whom the policy knows enough, and who has nothing to do."""
        return np.asarray(self.ledger.known(self.policy.needs) & ~self.busy())

    def busy(self) -> BoolArray:
        """(n,) who has a task."""
        busy = np.zeros(len(self.ledger), dtype=np.bool_)
        busy[self.ledger.rows(task.client for task in self.flight.tasks.values())] = True
        return busy

    def view_of(self, available: BoolArray) -> View:
        """Return what the policy is shown while these can be chosen."""
        flying, held, failed = self.flight.tables(self.ledger.rows, self._clipped_sketches)
        known = self.ledger.facts() | {"in_flight": flying, "in_hand": held, "failed": failed}
        return View(self.step, self.now, available, self.shares(), **known)

    def decide(self, view: View) -> Move:
        """Ask the policy. In rounds, claims of clients cannot leave it without a choice."""
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
        """Clients that are not asked, by the evidence of a validation set; `readmit` takes it back."""
        return set(self.ledger.ids_of(np.flatnonzero(~self._admitted())))

    def readmit(self, clients: Iterable[ClientId] | None = None) -> list[ClientId]:
        """Ask excluded clients again, and return those of them that were excluded.

        Use it when you know that a client is honest, or was repaired. The rejections that led to its exclusion are
        forgotten too.

        Args:
            clients: None = all that are excluded.
        """
        rows = np.arange(len(self.ledger)) if clients is None else self.ledger.rows(listed(clients, "the clients"))
        trust = self.ledger.trust
        readmitted = self.ledger.ids_of(rows[trust.columns["excluded"][rows] > 0])
        trust.readmit(rows)
        return list(readmitted)

    def _clipped_sketches(self, sketches: FloatArray, clients: Sequence[ClientId]) -> FloatArray:
        """Return sketches of updates in hand as they would count: policies must not be led by them."""
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
        """Forget what clients were doing and what is in hand of them: it was in vain, and nothing waits for it."""
        flying, held = self.flight.flying, self.flight.held
        self.flight.lose(clients)
        lost = held - self.flight.held
        self.at.turn.wasted += flying - self.flight.flying + lost
        if lost and (wait := self.at.wait) is not None and wait.answers and not self.policy.rounds:
            # So many more answers are awaited than are in hand: not one more for everybody who is gone with one.
            self.at.wait = replace(wait, answers=max(1, wait.answers - lost))

    def _admitted(self) -> BoolArray:
        return self.ledger.trust.admitted(np.ones(len(self.ledger), dtype=np.bool_))

    def _rng(self) -> np.random.Generator:
        """Return the stream of this decision: rounds decide once per step."""
        key = (self.at.decisions,) if self.at.decisions else ()
        self.at.decisions += 1
        return stream(self.settings.seed, "select", self.step, *key)
