"""The coordinator: it gives tasks to clients, collects their answers and says when the model steps.

Look here for the order of events on a server. The module does no I/O, starts no threads and does not use torch.

    coordinator = Coordinator(selector, Settings(seed=0))
    coordinator.join(clients)
    while training:
        do = coordinator.due(now, available)
        if do.step is not None:
            ...                                  # aggregate the answers in do.step into the next model
            coordinator.stepped(now)
        for task in do.tasks:
            ...                                  # send version task.step of the model to task.client
        ...                                      # wait for an answer, or until coordinator.wake_at
        coordinator.receive(task.id, Outcome(task.client, seconds=...), now)       # or lost(task.id, now)

A transport only sends tasks and returns answers. The simulator delivers answers at virtual times; Flower and NVFlare
deliver them when messages arrive. The coordinator handles selection, warm-up, probes, deadlines, failures and model
versions for all transports. It alone writes its three parts: the `ledger` (facts about clients), the `task_table`
(tasks in flight and in hand) and the log of the current step (`progress.log`). `saving.py` saves its whole state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import BoolArray, FloatArray, IntArray, listed, real, shares_among
from fedpace._base.errors import InfeasibleError, InputError, OrderError
from fedpace._base.files import folder_of
from fedpace._base.rng import stream
from fedpace.core import saving
from fedpace.core.aggregation import Trained
from fedpace.core.facts import ordinary, valid_seconds
from fedpace.core.ledger import Ledger
from fedpace.core.rounds import Rounds, ending
from fedpace.core.settings import Settings
from fedpace.core.step_bounds import StepBounds
from fedpace.core.step_log import Phase, Progress, StepLog
from fedpace.core.sums import check_sums
from fedpace.core.task_table import TaskTable
from fedpace.core.tasks import Actions, Answer, Kind, Move, Policy, Step, Task
from fedpace.core.types import (
    ClientId,
    Diagnostics,
    Mode,
    Need,
    Outcome,
    ProbeKind,
    Selector,
    View,
    check_traits,
    facts_wanted,
)
from fedpace.core.validation import (
    SILENT_STEPS,
    WORK_REFUSED,
    check_client,
    check_move,
    check_probe,
    checked_facts,
    checked_work,
    make_report,
    warn_of_missing_facts,
)
from fedpace.core.warmup import WarmUp
from fedpace.core.widths import Widths
from fedpace.moments.store import MomentStore

NOTHING_DUE = Actions()

IDLE = (Phase.JOINING, Phase.WARMING_UP, Phase.PROBING, Phase.DECIDING, Phase.WAITING)
ALLOWED: dict[str, tuple[Phase, ...]] = {
    "due": IDLE,
    "ask": (Phase.JOINING, Phase.DECIDING),
    "stepped": (Phase.STEPPING,),
    "save": IDLE,
}
"""Method -> the phases in which it may be called. The other methods may be called at any time."""
HINTS = {
    "stepped": "due() says when a step is to be made",
    "ask": "first end what is under way",
}


class Coordinator:
    """Combines the policy, the ledger and the tasks; a host drives it with `due`, `receive` and `stepped`.

    Args:
        policy: a Policy; or a Selector, which runs in synchronous rounds.
        settings: seed, shares, warm-up and deadline; see `Settings`.
        moments: an empty store for feature moments; None = the default store.
        offers: facts that the host will report, and `Need.WORK` if its clients train as much as `Task.work` says. If
            the policy needs more, the constructor raises InputError. None = no facts are declared or checked, and all
            clients train the same.
    """

    def __init__(
        self,
        policy: Policy[Any] | Selector[Any],
        settings: Settings | None = None,
        *,
        moments: MomentStore | None = None,
        offers: Iterable[Need] | None = None,
    ) -> None:
        if settings is not None and not isinstance(settings, Settings):
            raise InputError(f"settings must be a fedpace.Settings, but a {type(settings).__name__} came")
        check_traits(policy)
        self.settings = how = settings or Settings()
        self.sums = how.aggregation == "sums"
        """Whether the server sees only sums of updates (`Settings.aggregation`)."""
        self.wanted = facts_wanted(policy) - ({Need.UPDATE} if self.sums else frozenset())
        """Facts that clients should report: all that the policy needs or uses. With sums, no update sketches."""
        self.ledger = Ledger(
            learn_delays=how.learn_delays,
            moments=moments,
            accumulators=policy.accumulates,
            trust=how.trust,
            clip=how.clip,
            weight_rate=how.weight_rate,
            share_rule=how.shares,
            stamp_answers=self.sums,
        )
        if self.sums:
            check_sums(policy, how.minimum)
        self.bounds = StepBounds(self.ledger)
        self.warmup = WarmUp(self.ledger, how, policy)
        self.policy: Any = policy if hasattr(policy, "decide") else Rounds(policy, self._name, self.bounds.cohort)
        self.state: Any = self.policy.init()
        self.progress = Progress()
        self.task_table = TaskTable()
        self.widths = Widths(self.ledger, lambda: self.task_table)
        self._step: Step | None = None
        """The step that is due in the phase STEPPING."""
        self._warned = False
        given = None if offers is None else frozenset(listed(offers, "what a host offers"))
        self.progress.accepts_work = given is not None and Need.WORK in given
        if policy.sets_work and not self.accepts_work:
            raise InputError(f"{self.policy.name} {WORK_REFUSED}")
        if given is not None and (missing := self.policy.needs - given):
            has = ", ".join(sorted(given)) or "nothing"
            raise InputError(f"{self.policy.name} needs {', '.join(sorted(missing))}; this host reports {has} only")

    # -- state that hosts read -------------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """What the coordinator does now; see `Phase`."""
        return self.progress.phase

    @property
    def accepts_work(self) -> bool:
        """Whether clients train as much as `Task.work` says (`Need.WORK`); otherwise work must be 1."""
        return self.progress.accepts_work

    @property
    def step(self) -> int:
        """Number of steps made, which is the version of the shared model."""
        return self.progress.step

    @property
    def now(self) -> float:
        """Current time in seconds, virtual or real."""
        return self.progress.now

    @property
    def log(self) -> StepLog:
        """What has happened since the last step; only the coordinator writes it."""
        return self.progress.log

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """All client ids in order of joining; the index of a client is its row in the View."""
        return tuple(self.ledger.ids)

    def __len__(self) -> int:
        """Number of clients."""
        return len(self.ledger)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks in flight."""
        return tuple(self.task_table.tasks.values())

    @property
    def stragglers_continue(self) -> bool:
        """Whether stragglers that miss the end of a round continue, and report when they finish (`hear_late`)."""
        return self.settings.hear_late and bool(self.policy.rounds)

    @property
    def wait_is_over(self) -> bool:
        """Whether the policy's wait is over, so that `due` would act now without further answers."""
        return self.progress.wait_is_over(self.task_table, self._needed)

    @property
    def wake_at(self) -> float:
        """Time at which to call `due` even if no answer arrives; infinity = only an answer or a new client matters."""
        return self.progress.wake_at(self.task_table, self._needed)

    @property
    def excluded(self) -> set[ClientId]:
        """Clients that get no tasks, because the validation set refused their updates; `readmit` undoes it."""
        return set(self.ledger.ids_of(np.flatnonzero(~self.ledger.reachable(None, self.step))))

    # -- clients ---------------------------------------------------------------------------------------------

    def join(
        self,
        clients: Iterable[ClientId],
        *,
        samples: Sequence[float] | None = None,
        delays: Sequence[float] | FloatArray | None = None,
        compute: Sequence[float] | FloatArray | None = None,
        labels: ArrayLike | None = None,
    ) -> None:
        """Add clients, at any time. Pass known facts with one entry or row per client.

        Args:
            clients: ids of the new clients.
            samples: number of samples of each client.
            delays: expected seconds of a task of each client.
            compute: the part of `delays` that grows with the work of a task; only with `delays`.
            labels: (k, c) label histograms.
        """
        if isinstance(clients, str | bytes):
            raise InputError(f"join() takes a list of client ids, but the one id {clients!r} came: put it into a list")
        ids = listed(clients, "the clients that join")
        self.ledger.join(ids, samples=samples, delays=delays, compute=compute, labels=labels)
        if ids and self.phase is Phase.JOINING:
            self.progress.phase = Phase.DECIDING

    def leave(self, clients: Iterable[ClientId]) -> None:
        """Remove clients, their facts and their tasks, at any time.

        For a short absence, use `available` of `due` instead.
        """
        gone = listed(clients, "the clients that leave")
        explained = list(self.log.why.reasons)
        named = dict(zip(explained, self.ledger.ids_of(np.array(explained, np.int64)), strict=True))
        self.ledger.leave(gone)
        left = set(gone)
        self.log.move_up({row: self.ledger.row(c) for row, c in named.items() if c in self.ledger})
        self.widths.leave(left)
        self._lose(left)
        if (step := self._step) is not None:  # clients that left do not count as failed in it
            self._step = replace(step, dropped=tuple(task for task in step.dropped if task.client not in left))

    def readmit(self, clients: Iterable[ClientId] | None = None) -> list[ClientId]:
        """End the exclusion of clients, and return the clients that were excluded.

        Use it when you know that a client is honest or was repaired. The evidence against these clients and the weight
        that they have used are reset too.

        Args:
            clients: None = all clients.
        """
        rows = np.arange(len(self.ledger)) if clients is None else self.ledger.rows(listed(clients, "the clients"))
        trust = self.ledger.trust
        readmitted = self.ledger.ids_of(rows[trust.columns["rest_until"][rows] > self.step])
        trust.readmit(rows)
        return list(readmitted)

    def reachable(self, available: Iterable[ClientId] | None) -> BoolArray:
        """(n,) True for clients in `available` (None = all clients) that have no rest (`Trust.observe_verdicts`)."""
        present = None if available is None else listed(available, "the clients that are available")
        return self.ledger.reachable(present, self.step)

    def shares(self) -> FloatArray:
        """(n,) weights of the clients in the objective; they sum to 1."""
        return self.ledger.shares()

    def share_of(self) -> Callable[[ClientId], float | None]:
        """Return a function: client -> its current weight in the objective; None if it has left."""
        return self.ledger.share_of()

    def among(self, rows: IntArray) -> FloatArray:
        """Return the shares of `rows`, scaled to sum 1; equal shares if all of them are 0."""
        return shares_among(self.shares(), rows)

    def _name(self, row: int) -> str:
        """Return the name of a row's client for error messages, from the current ledger."""
        return self.ledger.name(row)

    # -- the loop of a transport -----------------------------------------------------------------------------

    def due(self, now: float | None = None, available: Iterable[ClientId] | None = None) -> Actions:
        """Return the step and the tasks that are due now; empty Actions mean: wait for an answer or for `wake_at`.

        Args:
            now: seconds, virtual or real; must not run backwards. None = the time has not changed.
            available: clients that can be reached; None = all clients.
        """
        self._expect("due")
        self.advance(now)
        if self.phase is Phase.WAITING:
            return self._wait_ended(available) if self.wait_is_over else NOTHING_DUE
        if self.phase is Phase.PROBING:
            if any(task.kind == "probe" for task in self.task_table.tasks.values()):
                return NOTHING_DUE
            self._take_probes()
        if self.phase is Phase.WARMING_UP and not self.progress.is_warm(self.task_table):
            return NOTHING_DUE
        self.end_warmup()
        reachable = self.reachable(available)
        return self._begin(reachable) if reachable.any() else NOTHING_DUE

    def receive(self, task: int, answer: Answer, now: float | None = None) -> bool:
        """Record the answer to a task; return False if the task is no longer in flight, and ignore the answer then.

        An invalid answer raises InputError, and its task stays in flight: report that task with `lost`.
        """
        started = self.task_table.tasks.get(_whole(task))
        if started is None:
            return False
        if isinstance(answer, Outcome):
            if answer.client is not started.client:
                check_client(answer, started)
            answer = self._checked(started, answer)
        elif not callable(answer):
            raise InputError(f"expected the Outcome of task {task}, but a {type(answer).__name__} came")
        if now is not None:
            self.advance(now)
        self.task_table.settle(task, answer, None if now is None else self.now)
        return True

    def lost(self, task: int, now: float | None = None, *, seconds: float = math.nan, why: str = "") -> bool:
        """Record that a task failed; return False if the task is no longer in flight.

        Args:
            task: id of the task.
            now: as for `due`.
            seconds: how long the server waited, if that says how slow the client is; NaN = it does not.
            why: the reason, for the record of the step.
        """
        started = self.task_table.tasks.get(_whole(task))
        if started is None:
            return False
        if why:
            self.log.failures[str(started.client)] = why
        return self.receive(task, Outcome(started.client, seconds=seconds, finished=False), now)

    def stepped(
        self, now: float | None = None, *, seconds: float | None = None, facts: Mapping[str, float] | None = None
    ) -> StepLog:
        """Record that the host has made the step: update the ledger, inform the policy, and return the step's log.

        Args:
            now: as for `due`.
            seconds: how long the server waited for the answers; None = from the start of their tasks until `now`.
            facts: numbers that the server rule measured (`fedpace.core.server_rule.step_facts`), for the policy.
        """
        self._expect("stepped")
        assert self._step is not None
        self.advance(now)
        step, log = self._step, self.log
        log.seconds = self.now - log.began if seconds is None else valid_seconds(seconds, "a step")
        # Sort by start: the report and the ledger must not depend on the order of arrival.
        ended = self.task_table.take_step([task.id for task, _ in step.answers])
        waited = math.nan if self.stragglers_continue else ordinary(log.seconds)  # stragglers report their time later
        dropped = [task for task in step.dropped if task.client in self.ledger]  # others left since the step was due
        ended += [(task, Outcome(task.client, seconds=waited, finished=False)) for task in dropped]
        ended.sort(key=lambda pair: pair[0].id)
        if not self.policy.rounds:  # rounds set weights at the start of tasks, other policies at the step
            weights = {task.id: weight for task, weight in step.answers}
            ended = [(task._replace(weight=weights.get(task.id, 0.0)), outcome) for task, outcome in ended]
        self._fold(ended)
        self.ledger.fold_weights([(task.weight, outcome) for task, outcome in ended])
        report = make_report(step.number - 1, ended, self.ledger, self.now, facts)
        self.state = self.policy.observe(self.state, report)
        log.settle(ended)
        self.bounds.observe(step)
        self.progress.step, self.progress.decisions, self._step = step.number, 0, None
        self.progress.log = StepLog(began=self.now)
        self.progress.phase = Phase.DECIDING if self.progress.wait is None else Phase.WAITING
        if (names := sorted(map(str, self.excluded))) != self.progress.excluded:
            log.excluded = self.progress.excluded = names
        return log

    def ask(self, now: float | None = None, available: Iterable[ClientId] | None = None) -> Actions:
        """Start only the probes that the policy wants before its next decision; `due` probes and then decides."""
        self._expect("ask")
        reachable = self.reachable(available)
        ready = reachable & self.ready()
        if self.warmup.unmeasured(reachable).size or not ready.any():
            return NOTHING_DUE
        self.advance(now)
        return self._probe(self.view_of(ready)) or NOTHING_DUE

    def end_warmup(self) -> None:
        """Fold the measurements received so far into the ledger, and stop waiting for the rest of the warm-up."""
        measured = self.task_table.take("measure")
        self._fold(measured)
        warming = self.progress.warming
        self.log.heard += [t.client for t, outcome in measured if outcome.finished and t.id not in warming]
        self.progress.warming = set()
        if self.phase is Phase.WARMING_UP:
            self.progress.phase = Phase.DECIDING

    def abandon(self, *, but: Collection[int] = ()) -> None:
        """Give up all tasks in flight and all unused answers, as after a restart in mid-round.

        No client counts as failed. Measurements that were received but not yet folded are kept.

        Args:
            but: ids of measurement tasks that stay in flight.
        """
        given_up = [task for task in self.tasks if task.kind == "measure" and task.id not in but]
        self.ledger.columns["asked"][self.ledger.rows(task.client for task in given_up)] = False
        was, table = self.progress, self.task_table
        log = was.log.give_up(table.flying + table.held, was.now)
        self.task_table, self._step = table.measuring(but), None
        phase = Phase.JOINING if was.phase is Phase.JOINING else Phase.DECIDING
        self.progress = Progress(
            phase,
            was.step,
            was.now,
            log,
            was.next_task,
            was.decisions,
            excluded=was.excluded,
            accepts_work=was.accepts_work,
        )

    def advance(self, now: float | None) -> None:
        """Set the clock to `now`, and add the work of the clients in flight; None leaves the clock unchanged."""
        if now is None or (type(now) is float and now == self.now):  # common: several answers at one instant
            return
        seconds = now if type(now) is float else real(now, "now")
        if not (math.isfinite(seconds) and seconds >= self.now):
            raise InputError(f"time must not run backwards: it was {self.now} s, but now = {now} came")
        # Tasks start and end only at events, so every client in flight worked for this whole interval.
        self.log.work += len(self.task_table.tasks) * (seconds - self.now)
        self.progress.now = seconds

    def add_work(self, seconds: float) -> None:
        """Count client-seconds that took no time on the clock, such as warm-ups that a simulation does not charge."""
        self.log.work += seconds

    def wait_at_least(self, seconds: float) -> None:
        """Extend the deadline of the current wait to at least `seconds` from now, for time that a transport needs."""
        self.progress.until = max(self.progress.until, self.now + seconds)

    def _expect(self, call: str) -> None:
        """Raise OrderError if a method may not be called in the current phase (`ALLOWED`)."""
        if self.phase in ALLOWED[call]:
            return
        step = f"make step {self._step.number}, and call stepped()" if self._step is not None else HINTS.get(call, "")
        expected = "another phase" if ALLOWED[call] is IDLE else " or ".join(ALLOWED[call])
        raise OrderError(f"{call}() came in the phase {self.phase}, but it belongs to {expected}: {step}")

    # -- waiting and deciding --------------------------------------------------------------------------------

    @property
    def _needed(self) -> int:
        """Fewest answers that can end a round with sums; 0 = any number, or a policy without rounds."""
        return self.settings.minimum if self.sums and self.policy.rounds else 0

    def _wait_ended(self, available: Iterable[ClientId] | None) -> Actions:
        """Return what is due when the policy's wait is over: the end of the round, or the policy's next decision."""
        progress, table = self.progress, self.task_table
        if progress.stand_in or self.policy.rounds:
            if progress.training:
                table.go_on(late := table.drop([task.id for task in table.policy_tasks()[0]]))
                self.log.warmed += [task.client for task in late]
            progress.stand_in = progress.training = False
            return self._execute(ending(*table.policy_tasks(), self.log.mode))
        return self._execute(self._decide(self.view_of(self.reachable(available) & self.ready())))

    def _begin(self, reachable: BoolArray) -> Actions:
        """Return what is due when the policy waits for nothing: a warm-up, a probe, or the policy's decision."""
        if (rows := self.warmup.unmeasured(reachable)).size:
            if self.settings.warmup_trains and not (reachable & self.ready()).any():
                self.progress.stand_in = self.progress.training = True
                self.ledger.columns["asked"][rows] = True
                return self._execute(self.warmup.first_round(rows))
            tasks = self._start("measure", rows)
            self.progress.phase, self.progress.warming = Phase.WARMING_UP, {task.id for task in tasks}
            self.progress.quorum = self.warmup.quorum(rows.size)
            return Actions(tasks, warmup=True)
        ready = reachable & self.ready()
        if not ready.any():
            rows = self.warmup.newcomers(reachable & ~self.ledger.mask(self._busy()), self.step, needed=True)
            if not rows.size:
                return NOTHING_DUE
            self.progress.stand_in = True
            return self._execute(self.warmup.stand_in(rows))
        view = self.view_of(ready)
        if self.progress.probed_step != self.step and (asked := self._probe(view)) is not None:
            return asked
        move = self._decide(view)
        newcomers = self.warmup.newcomers(reachable & ~ready & ~self.ledger.mask(self._busy()), self.step)
        actions = self._execute(move)
        if not newcomers.size:
            return actions
        return replace(actions, tasks=(*actions.tasks, *self._start("measure", newcomers)))

    def _decide(self, view: View) -> Move:
        """Return the policy's next move.

        If a scheme for rounds finds no feasible cohort while trust is on, the move starts all available clients: false
        claims of clients must not stop training.
        """
        key = (self.progress.decisions,) if self.progress.decisions else ()
        self.progress.decisions += 1
        try:
            move: Move
            rng = stream(self.settings.seed, "select", self.step, *key)
            move, state = self.policy.decide(self.state, view, rng)
        except InfeasibleError as problem:
            if not (self.ledger.trust.on and self.policy.rounds):
                raise
            why = Diagnostics(status=f"all that can be reached, since {problem}")
            return Move(view.candidates, self.among(view.candidates), why=why)
        if not self.policy.rounds:  # `Rounds` has checked its cohort
            check_move(move, view, self.policy.name, self._name)
        self.state = state
        return move

    def _execute(self, move: Move) -> Actions:
        """Carry out a policy's move: return its step and its new tasks."""
        step, table, progress = None, self.task_table, self.progress
        move = self._enough(move)
        if move.apply is not None:
            tasks = table.in_hand(move.apply.ids.tolist())
            facts = checked_facts(move.apply.facts, len(tasks), self.policy.name)
            apply, number = move.apply, self.step + 1
            weighted, scale = self.bounds.weigh(tasks, apply.weights, apply.mode, number, self.log)
            dropped = table.drop(move.drop.tolist())
            self._step = step = Step(number, weighted, apply.mode, dropped, scale, facts)
            table.go_on(step.dropped if self.stragglers_continue else ())
        progress.until = self.now + min(move.wait.seconds, self.settings.deadline)
        progress.wait = move.wait if move.start.size or table.flying else None
        if step is not None:
            progress.phase = Phase.STEPPING
        else:
            progress.phase = Phase.DECIDING if progress.wait is None else Phase.WAITING
        if move.start.size or move.why.facts:  # a step that starts no task may have facts too
            self.log.why, self.log.mode = move.why, move.mode
        if not move.start.size:
            return Actions((), step)
        if step is None and not table.flying:
            self.log.began = self.now
        version = self.step if step is None else step.number
        work = None
        if move.work is not None:
            work = checked_work(move.work, move.start.size, self.policy.name, accepted=self.accepts_work)
        return Actions(self._start("train", move.start, move.weights, version=version, work=work), step)

    def _enough(self, move: Move) -> Move:
        """Return the move without its step if the host cannot open a sum of so few answers; then wait for one more."""
        if move.apply is None or not self.sums or self.policy.rounds or self.progress.stand_in:
            return move
        used = move.apply.ids[np.asarray(move.apply.weights) != 0].tolist()
        if len({task.client for task in self.task_table.in_hand(used)}) >= self.settings.minimum:
            return move
        more = self.task_table.held + 1
        wait = replace(move.wait, answers=max(more, move.wait.answers) if move.wait.answers else 0, seconds=math.inf)
        return replace(move, apply=None, drop=move.drop[:0], wait=wait)

    def _start(
        self,
        kind: Kind,
        rows: IntArray,
        weights: FloatArray | None = None,
        *,
        probe: ProbeKind = "loss",
        samples: int = 0,
        version: int | None = None,
        work: Sequence[float] | None = None,
    ) -> tuple[Task, ...]:
        """Start one task for each client in `rows`, put them in flight and return them.

        Args:
            kind: of all these tasks.
            rows: (k,) rows of the clients.
            weights: (k,) weights from the policy; None = 0.
            probe: what a probe asks for.
            samples: samples that a probe uses; 0 = all.
            version: version of the model that the clients get; None = the current version.
            work: (k,) how much the clients train; None = 1.
        """
        step, now = self.step if version is None else version, self.now
        weighed = np.zeros(rows.size) if weights is None else weights
        jobs = self.ledger.columns["started"]
        amounts = [1.0] * rows.size if work is None else work
        ids, facts_of = self.ledger.ids_of(rows), self._facts(rows)
        entries = zip(ids, weighed.tolist(), facts_of, jobs[rows].tolist(), amounts, strict=True)
        started = tuple(
            Task(number, client, kind, step, now, weight, facts, probe, samples, job, amount)
            for number, (client, weight, facts, job, amount) in enumerate(entries, start=self.progress.next_task)
        )
        jobs[rows] += kind == "train"
        self.progress.next_task += len(started)
        self.log.sent += len(started)
        self.task_table.start(started)
        if kind == "measure":
            self.ledger.columns["asked"][rows] = True
            self.log.warmed += [task.client for task in started]
        elif kind == "probe":
            self.log.probed += [task.client for task in started]
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

    # -- what the policy is shown ----------------------------------------------------------------------------

    def view(self, *, now: float | None = None, available: Iterable[ClientId] | None = None) -> View:
        """Return the View that the policy would get if it decided now."""
        shown = self.view_of(self.reachable(available) & self.ready())
        return shown if now is None else replace(shown, now=now)

    def view_of(self, available: BoolArray) -> View:
        """Return the View for the policy when the clients in the mask `available` can be chosen."""
        step, now, minimum = self.step, self.now, self.settings.minimum if self.sums else 1
        flying, held, failed = self.task_table.tables(self.ledger.rows, partial(self.bounds.sketches, step=step))
        facts = self.ledger.facts()
        return View(step, now, available, in_flight=flying, in_hand=held, failed=failed, minimum=minimum, **facts)

    def ready(self) -> BoolArray:
        """(n,) True for clients without a task for which every fact that the policy needs is known."""
        return self.ledger.ready(self.policy.needs, self._busy())

    def _busy(self) -> list[ClientId]:
        """Clients with a task in flight."""
        return [task.client for task in self.task_table.tasks.values()]

    # -- answers ---------------------------------------------------------------------------------------------

    def _checked(self, task: Task, outcome: Outcome) -> Outcome:
        """Return the outcome after validation; an invalid one raises InputError.

        The outcome also votes for the width of moments and sketches: a new majority replaces the width in use.
        """
        if task.kind == "probe":  # a probe takes no time, and a loss that is not finite is no answer
            loss = real(outcome.loss, f"the loss of client {task.client!r}")
            loss = loss if math.isfinite(loss) else math.nan
            outcome = replace(outcome, client=task.client, seconds=0.0, loss=loss, moment=None)
        self._check_sums_only([outcome])
        self.widths.vote([outcome])
        moment = None if outcome.moment is None else self.task_table.width("moment")
        update = None if outcome.update is None else self.task_table.width("update")
        self.ledger.check([outcome], moment, update)
        return outcome

    def _check_sums_only(self, outcomes: Iterable[Outcome]) -> None:
        """Raise InputError if an outcome says something about a single update, but the run shows sums only."""
        for outcome in outcomes if self.sums else ():
            if outcome.update is not None:
                raise InputError(
                    f"an update sketch of client {outcome.client!r} came, but with aggregation = 'sums' the server "
                    "sees no single updates: report without it"
                )

    def _fold(self, settled: list[tuple[Task, Outcome]]) -> None:
        """Fold outcomes into the ledger, grouped by the model version that each client trained from.

        Several outcomes of one client at one version are folded one after the other.
        """
        reports = [outcome for _, outcome in settled]
        self._check_sums_only(reports)
        self.ledger.check(reports)  # answers given as functions are not checked yet
        self.log.count_reported(reports)
        groups: dict[tuple[int, int], list[tuple[Task, Outcome]]] = {}
        clipped: dict[tuple[int, int], set[ClientId]] = {}
        times: dict[tuple[int, ClientId], int] = {}
        for task, outcome in settled:
            nth = times.get((task.step, task.client), 0)
            times[task.step, task.client] = nth + 1
            groups.setdefault((task.step, nth), []).append((task, outcome))
            if task.id in self.bounds.clipped:
                clipped.setdefault((task.step, nth), set()).add(task.client)
        self.bounds.clipped = frozenset()
        for group in sorted(groups):
            work = [task.work for task, _ in groups[group]]
            outcomes = [outcome for _, outcome in groups[group]]
            self.ledger.fold(outcomes, group[0], self.step - group[0], clipped.get(group, ()), work)
        if not self._warned and self.step == SILENT_STEPS - 1 and any(task.kind == "train" for task, _ in settled):
            self._warned = True
            warn_of_missing_facts(self.policy, self.ledger, self.wanted)

    def _lose(self, clients: set[ClientId]) -> None:
        """Remove the tasks and the unused answers of clients, count them as wasted, and shorten the wait."""
        table = self.task_table
        flying, held = table.flying, table.held
        table.lose(clients)
        lost = held - table.held
        self.log.wasted += flying - table.flying + lost
        if lost and (wait := self.progress.wait) is not None and wait.answers and not self.policy.rounds:
            # The wait counts answers in hand. Lower it by the lost ones, so that it needs no more new answers.
            self.progress.wait = replace(wait, answers=max(1, wait.answers - lost))

    # -- probes ----------------------------------------------------------------------------------------------

    def _probe(self, view: View) -> Actions | None:
        """Return the probe tasks that the policy wants before it decides; None = it wants no probe."""
        probe = self.policy.probe(self.state, view, stream(self.settings.seed, "probe", self.step))
        if probe is not None:
            check_probe(probe, view, self.policy.name, self._name)
            if self.sums and probe.kind == "gradient":
                raise InputError(f"{self.policy.name} asks single clients for gradients, which sums do not show")
        self.progress.probed_step = self.step
        if probe is None:
            return None
        self.progress.phase = Phase.PROBING
        return Actions(self._start("probe", probe.clients, probe=probe.kind, samples=probe.samples))

    def _take_probes(self) -> None:
        """Fold the answers to the finished probe; a loss that is not finite counts as no answer."""
        answered = [(task, outcome) for task, outcome in self.task_table.take("probe") if outcome.finished]
        self.log.count_reported([outcome for _, outcome in answered])
        if answered and answered[0][0].probe == "loss":
            self.note_probes({task.client: o.loss for task, o in answered if math.isfinite(o.loss)}, "loss")
        else:
            self.note_probes({task.client: o.update for task, o in answered if o.update is not None}, "gradient")

    def note_probes(self, answers: Mapping[ClientId, Any], kind: ProbeKind) -> None:
        """Store the answers to the current probe and end it; one invalid answer rejects them all.

        Args:
            answers: client -> loss, or gradient sketch. Clients that did not answer are missing.
            kind: what the probe asked for.
        """
        rows = {self.ledger.row(client): value for client, value in answers.items() if client in self.ledger}
        if kind == "loss":
            self.ledger.set_losses(rows, self.step)
        else:
            self.ledger.set_updates(rows, self.step)
        self._end_probe()

    def abandon_probe(self) -> None:
        """Cancel the current probe; the policy may probe again in this step."""
        self._end_probe()
        self.progress.probed_step, self.log.probed = -1, []

    def _end_probe(self) -> None:
        self.task_table.drop([task.id for task in self.tasks if task.kind == "probe"])
        if self.phase is Phase.PROBING:
            self.progress.phase = Phase.DECIDING

    # -- bounds on a step ------------------------------------------------------------------------------------

    def bound(self, step: Step, answers: Sequence[Trained]) -> tuple[Step, dict[int, float], dict[int, float]]:
        """Bound the answers of a step.

        Args:
            step: the step that is due.
            answers: one for each task of the step.

        Returns:
            The step without answers that are not finite; task id -> clip factor of each update that is too long; task
            id -> clip factor of the buffers that moved too far.
        """
        if self.sums:
            raise InputError("single updates came, but with aggregation = 'sums' there are none: use SumAggregator")
        lost, updates, buffers = self.bounds.clip(answers, self.step, self.log)
        return (self.refuse(lost, step) if lost else step), updates, buffers

    def refuse(self, tasks: Collection[int] | Mapping[int, str], step: Step | None = None) -> Step:
        """Treat answers of the due step as failures, and return the step without them.

        In mode `average` the weights of the remaining answers are scaled to sum 1 and capped again. In mode `delta`
        they stay as they are, so the part of the refused answers is missing.

        Args:
            tasks: ids of the tasks; a mapping also gives the reason for each.
            step: the step to change; None = the coordinator's due step.
        """
        step = self._step if step is None else step
        if step is None:
            raise OrderError(f"refuse() came in the phase {self.phase}, but it belongs to stepping: {HINTS['stepped']}")
        refused = set(listed(tasks, "the tasks that are refused"))
        reasons = tasks if isinstance(tasks, Mapping) else dict.fromkeys(refused, "refused by the server")
        self.task_table.refuse(refused)
        self.log.failures |= {str(task.client): reasons[task.id] for task, _ in step.answers if task.id in reasons}
        found = step.without(refused) if refused else step
        weights = np.array([weight for _, weight in found.answers])
        if refused and step.mode == "average" and weights.any():
            # Cap the scaled weights too: a refused client may collude with a client that gets its weight.
            left = [task for task, _ in found.answers]
            weighted, scale = self.bounds.weigh(left, weights, step.mode, step.number, self.log)
            found = replace(found, answers=weighted, scale=scale)
        if self._step is not None:
            self._step = found
        return found

    def hold(self, tasks: Collection[int], step: Step) -> Step:
        """Keep answers of the due step in hand for a later step, and return the step without them.

        In mode `average` the weights of the remaining answers are scaled to sum 1.

        Args:
            tasks: ids of the tasks.
            step: the due step.
        """
        found = step.without(tasks)
        if self._step is not None:
            self._step = found
        return found

    def step_of(self, tasks: Sequence[Task], weights: FloatArray, mode: Mode) -> Step:
        """Return the step made of these tasks' answers, with capped weights; mode `average` scales them to sum 1."""
        if mode == "average" and (total := sum(weights.tolist())) > 0:
            weights = weights / total
        weighted, scale = self.bounds.weigh(tasks, weights, mode, self.step + 1, self.log)
        return Step(self.step + 1, weighted, mode, (), scale)

    def note_combined(self, step: Step, counted: BoolArray, *, judged: bool) -> None:
        """Record which answers of a step a robust rule left out, and judge clients by the validation set.

        Args:
            step: the step.
            counted: (k,) True for the answers that the rule used.
            judged: whether a validation set decided that.
        """
        self.bounds.leave_out(step, counted, self.log, judged=judged)

    # -- saving ----------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the whole state into the folder `path`; the saved state there stays valid until the write is done.

        While a step is due but not made it raises OrderError: a restored server could not know if the model moved.
        """
        saving.save(self, folder_of(path))

    def check_saveable(self) -> None:
        """Raise OrderError while a step is due but not made."""
        self._expect("save")

    @classmethod
    def restore(
        cls,
        path: str | Path,
        policy: Any = None,
        *,
        moments: MomentStore | None = None,
        offers: Iterable[Need] | None = None,
    ) -> Coordinator:
        """Return the coordinator saved in the folder `path`.

        Args:
            path: folder of `save`.
            policy: only needed if it is not registered.
            moments: an empty store for feature moments; None = the default store.
            offers: what the host offers now; None = what the saved coordinator was offered.
        """
        return saving.restore(folder_of(path), policy, moments, offers=offers)[0]


def _whole(task: Any) -> int:
    """Return the id of a task as an int; raise InputError if it is no integer."""
    if type(task) is int:
        return task
    if isinstance(task, bool) or not isinstance(task, int | np.integer):
        raise InputError(f"a task is named by its id, a whole number, but {task!r} came: give task.id")
    return int(task)
