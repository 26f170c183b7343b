"""Where training stands: the clients, what is known of them, and the tasks in flight. Nothing is decided here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedpace.core.checks import BoolArray, FloatArray, IntArray, listed, real
from fedpace.core.errors import InputError, OrderError
from fedpace.core.flight import Flight
from fedpace.core.policies import Rounds
from fedpace.core.progress import Progress
from fedpace.core.protocols import MomentStore
from fedpace.core.providers import moment_store
from fedpace.core.roster import Roster, Settings
from fedpace.core.screening import compared
from fedpace.core.silence import PATIENCE, warn_of_silence
from fedpace.core.stepping import Vector
from fedpace.core.tasks import Kind, Policy, Step, Task, Wait
from fedpace.core.types import ClientId, Cohort, Need, Outcome, ProbeKind, Selector, View, check_traits, facts_wanted


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
        self.at = Progress()
        self.flight = Flight()
        self._warned = False
        self._step: Step | None = None
        """The step that is due, until it is made."""
        self._judged: frozenset[int] = frozenset()
        """Tasks of that step whose updates were screened."""

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
        super().leave(gone)
        before = self.flight.flying + self.flight.held
        self.flight.lose(set(gone))
        self.at.turn.wasted += before - self.flight.flying - self.flight.held

    def screen(self, updates: Callable[[], Iterable[Vector]]) -> dict[int, float]:
        """Return which answers of the step that is due are to be refused: task -> how many times the usual length.

        Args:
            updates: yields what each answer changed, flat and in their order, each time that it is called.
        """
        if self._step is None:
            raise OrderError("screen() came without a step: due() says when one is to be made")
        tasks = [task for task, _ in self._step.answers]
        self._judged = frozenset(task.id for task in tasks)
        versions = [task.step for task in tasks]
        lengths, cosines = compared(updates, versions)
        rows = [self.ledger.row(task.client) if task.client in self.ledger else -1 for task in tasks]
        times = self.ledger.trust.judge(rows, lengths, versions, cosines, self.step)
        return {task.id: time for task, time in zip(tasks, times.tolist(), strict=True) if time}

    def refuse(self, tasks: Collection[int]) -> Step:
        """Take answers of the step that is due for failures, and return what is left of it.

        For what shows only beside the others' answers, such as an update many times as long as theirs. Who is refused
        leaves its weight to the others, as who fails does; in delta mode its step is simply missing.
        """
        if self._step is None:
            raise OrderError("refuse() came without a step: due() says when one is to be made")
        step = self._step
        self.flight.refuse(tasks)
        clients = [task.client for task, _ in step.answers if task.id in tasks]
        self.ledger.trust.refuse([self.ledger.row(client) for client in clients if client in self.ledger])
        left = [(task, weight) for task, weight in step.answers if task.id not in tasks]
        total = sum(weight for _, weight in left)
        if step.mode == "average" and total > 0:
            left = [(task, weight / total) for task, weight in left]
        self._step = replace(step, answers=tuple(left))
        return self._step

    def wait_at_least(self, seconds: float) -> None:
        """Let no deadline end the wait that has begun before so many seconds: what a transport needs for itself."""
        self.at.until = max(self.at.until, self.now + seconds)

    def forget_moments(self) -> None:
        """Forget everybody's moments, those in hand too: they are due again."""
        self.ledger.moments = moment_store()
        self.ledger.moments.append(len(self.ledger))
        self.ledger.columns["moment_step"][:] = -1
        self.ledger.trust.forget_moments()
        self.flight.forget_moments()

    def advance(self, now: float | None) -> None:
        """Note the time."""
        if now is None:
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
        return self.ledger.trust.bound(cohort, view.share, self.ledger.columns["delay"])

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
        flying, held = self.flight.tables(self.ledger.row, self.ledger.trust.shown)
        known = self.ledger.facts()
        return View(self.step, self.now, available, self.shares(), **known, in_flight=flying, in_hand=held)

    def fold(self, settled: list[tuple[Task, Outcome]]) -> None:
        """Fold outcomes, each at the version of the model that it is about; a client's several one after the other."""
        self.at.turn.hear(outcome for _, outcome in settled)
        groups: dict[tuple[int, int], list[Outcome]] = {}
        times = Counter[tuple[int, ClientId]]()
        judged: set[tuple[int, int, ClientId]] = set()
        for task, outcome in settled:
            nth = times[task.step, task.client]
            groups.setdefault((task.step, nth), []).append(outcome)
            times[task.step, task.client] += 1
            if task.id in self._judged:
                judged.add((task.step, nth, task.client))
        self._judged = frozenset()
        for step, nth in sorted(groups):
            seen = {client for *at, client in judged if at == [step, nth]}
            self.ledger.fold(groups[step, nth], step, self.step - step, seen)
        if not self._warned and self.step == PATIENCE - 1 and any(task.kind == "train" for task, _ in settled):
            self._warned = True
            warn_of_silence(self)

    # -- probes ----------------------------------------------------------------------------------------------

    def take_probes(self) -> None:
        """Fold what was answered to a probe; what is no number was not answered."""
        answered = [(task, outcome) for task, outcome in self.flight.take("probe") if outcome.finished]
        self.at.turn.hear(outcome for _, outcome in answered)
        if answered and answered[0][0].probe == "loss":
            self.heard_probes({task.client: o.loss for task, o in answered if math.isfinite(o.loss)}, "loss")
        else:
            self.heard_probes({task.client: o.update for task, o in answered if o.update is not None}, "gradient")

    def heard_probes(self, answers: Mapping[ClientId, Any], kind: ProbeKind) -> None:
        """Take in the answers to the probe that is out, all or none of them; who is missing did not answer."""
        rows = {self.ledger.row(client): value for client, value in answers.items() if client in self.ledger}
        if kind == "loss":
            self.ledger.set_losses(rows, self.step)
        else:
            self.ledger.set_updates(rows, self.step)
        self._end_probe()

    def abandon_probe(self) -> None:
        """Give up the probe that is out: it was not carried out."""
        self._end_probe()
        self.at.probed_step, self.at.turn.probed = -1, []

    def _end_probe(self) -> None:
        self.flight.drop([task.id for task in self.tasks if task.kind == "probe"])
        self.at.probing = False
