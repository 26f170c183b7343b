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
versions for all transports. `saving.py` saves its whole state.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedpace._base.checks import BoolArray, FloatArray, IntArray, listed
from fedpace._base.errors import InputError, OrderError
from fedpace._base.files import folder_of
from fedpace._base.rng import stream
from fedpace.core import saving
from fedpace.core.facts import ordinary, valid_seconds
from fedpace.core.hearing import Hearing
from fedpace.core.outcomes import check_client, make_report, whole_task
from fedpace.core.policies import ending
from fedpace.core.progress import Progress, Turn
from fedpace.core.protocols import MomentStore
from fedpace.core.roster import Settings
from fedpace.core.tasks import Answer, Due, Move, Policy, Step, Task, Wait
from fedpace.core.types import ClientId, Diagnostics, Mode, Need, Outcome, Selector, View
from fedpace.core.validation import check_probe
from fedpace.core.warmup import full_batch, lazy_batch

NOTHING_DUE = Due()
KNOWS_NOBODY = "lazy warm-up: {} knows too little of every client"


class Coordinator(Hearing):
    """Combines the policy, the ledger and the tasks in flight; a host drives it with `due`, `receive` and `stepped`.

    Args:
        policy: a Policy; or a Selector, which runs in synchronous rounds.
        settings: seed, shares, warm-up and deadline; see `Settings`.
        moments: an empty store for feature moments; None = the default store.
        offers: facts that the host will report. If the policy needs others, the constructor raises InputError.
            None = not declared, no check.
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
        super().__init__(policy, settings or Settings(), moments)
        if offers is not None and (missing := self.policy.needs - frozenset(listed(offers, "what a host offers"))):
            has = ", ".join(sorted(offers)) or "nothing"
            raise InputError(f"{self.policy.name} needs {', '.join(sorted(missing))}; this host reports {has} only")

    # -- what transports call --------------------------------------------------------------------------------

    def due(self, now: float | None = None, available: Iterable[ClientId] | None = None) -> Due:
        """Return the step and the tasks that are due now; an empty `Due` means: wait for an answer or for `wake_at`.

        Args:
            now: seconds, virtual or real; must not run backwards. None = the time has not changed.
            available: clients that can be reached; None = all clients.
        """
        if self._step is not None:
            raise OrderError(f"due() came while step {self._step.number} is not made: make it, and call stepped()")
        self.advance(now)
        if self.at.wait is not None:
            return self._ended(available) if self._over(self.at.wait) else NOTHING_DUE
        if self.at.probing:
            if any(task.kind == "probe" for task in self.flight.tasks.values()):
                return NOTHING_DUE
            self.take_probes()
        if self.at.warming and not self._warm():
            return NOTHING_DUE
        self.go_on()
        reachable = self.reachable(available)
        return self._open(reachable) if reachable.any() else NOTHING_DUE

    def receive(self, task: int, answer: Answer, now: float | None = None) -> bool:
        """Record the answer to a task; return False if the task is no longer in flight, and ignore the answer then.

        An invalid answer raises InputError, and its task stays in flight: report that task with `lost`.
        """
        started = self.flight.tasks.get(whole_task(task))
        if started is None:
            return False
        if isinstance(answer, Outcome):
            check_client(answer, started)
            answer = self.checked(started, answer)
        elif not callable(answer):
            raise InputError(f"expected the Outcome of task {task}, but a {type(answer).__name__} came")
        if now is not None:
            self.advance(now)
        self.flight.settle(task, answer, None if now is None else self.now)
        return True

    def lost(self, task: int, now: float | None = None, *, seconds: float = math.nan, why: str = "") -> bool:
        """Record that a task failed; return False if the task is no longer in flight.

        Args:
            task: id of the task.
            now: as for `due`.
            seconds: how long the server waited, if that says how slow the client is; NaN = it does not.
            why: the reason, for the record of the step.
        """
        started = self.flight.tasks.get(whole_task(task))
        if started is None:
            return False
        if why:
            self.at.turn.failures[str(started.client)] = why
        return self.receive(task, Outcome(started.client, seconds=seconds, finished=False), now)

    def stepped(
        self, now: float | None = None, *, seconds: float | None = None, facts: Mapping[str, float] | None = None
    ) -> Turn:
        """Record that the host has made the step: update the ledger, inform the policy, and return the step's record.

        Args:
            now: as for `due`.
            seconds: how long the server waited for the answers; None = from the start of their tasks until `now`.
            facts: numbers that the server step measured (`fedpace.core.stepping.step_facts`), for the policy.
        """
        if self._step is None:
            raise OrderError("stepped() came without a step: due() says when one is to be made")
        self.advance(now)
        step, turn = self._step, self.at.turn
        turn.seconds = self.now - turn.began if seconds is None else valid_seconds(seconds, "a step")
        # Sort by start: the report and the ledger must not depend on the order of arrival.
        ended = self.flight.take_step(task.id for task, _ in step.answers)
        waited = math.nan if self.goes_on else ordinary(turn.seconds)  # late clients report their time later
        ended += [(task, Outcome(task.client, seconds=waited, finished=False)) for task in step.dropped]
        ended.sort(key=lambda pair: pair[0].id)
        if not self.policy.rounds:  # rounds set weights at the start of tasks, other policies at the step
            weights = {task.id: weight for task, weight in step.answers}
            ended = [(task._replace(weight=weights.get(task.id, 0.0)), outcome) for task, outcome in ended]
        settled = [(task, outcome) for task, outcome in ended if task.client in self.ledger]
        self.ledger.check([outcome for _, outcome in settled])  # answers given as functions are not checked yet
        self.fold(settled)
        self.ledger.fold_weights([(task.weight, outcome) for task, outcome in settled])
        report = make_report(step.number - 1, settled, self.ledger, self.now, facts)
        self.state = self.policy.observe(self.state, report)
        turn.settle(ended)
        self._use_weights(step)
        excluded = self.excluded
        if (names := sorted(map(str, excluded))) != self.at.excluded:
            turn.excluded = self.at.excluded = names
        self.at.step, self.at.decisions, self.at.turn, self._step = step.number, 0, Turn(began=self.now), None
        if excluded and not self.policy.rounds:  # drop their tasks and their unused answers
            self._lose(excluded)
        return turn

    def _use_weights(self, step: Step) -> None:
        """Subtract the weights of a step from what its clients may still use (`Trust.use_weights`)."""
        if self.ledger.trust.on and step.answers:
            rows = np.array(self._rows_of([task for task, _ in step.answers]), dtype=np.int64)
            weights = step.scale * np.array([weight for _, weight in step.answers])
            self.ledger.trust.use_weights(rows, weights, self.shares(), step.number)

    def ask(self, now: float | None = None, available: Iterable[ClientId] | None = None) -> Due:
        """Start only the probes that the policy wants before its next decision; `due` probes and then decides."""
        reachable = self.reachable(available)
        ready = reachable & self.ready()
        if full_batch(self, reachable).size or not ready.any():
            return NOTHING_DUE
        self.advance(now)
        return self._ask(self.view_of(ready)) or NOTHING_DUE

    def go_on(self) -> None:
        """Fold the measurements received so far into the ledger, and stop waiting for the rest of the warm-up."""
        measured = [(task, outcome) for task, outcome in self.flight.take("measure") if task.client in self.ledger]
        self.fold(measured)
        self.at.turn.heard += [t.client for t, outcome in measured if outcome.finished and t.id not in self.at.warming]
        self.at.warming = set()

    def abandon(self, *, but: Collection[int] = ()) -> None:
        """Give up all tasks in flight and all unused answers, as after a restart in mid-round.

        No client counts as failed. Measurements that were received but not yet folded are kept.

        Args:
            but: ids of measurement tasks that stay in flight.
        """
        given_up = [task for task in self.tasks if task.kind == "measure" and task.id not in but]
        self.ledger.columns["asked"][self.ledger.rows(task.client for task in given_up)] = False
        at = self.at
        turn = at.turn.give_up(self.flight.flying + self.flight.held, at.now)
        self.flight, self._step = self.flight.measuring(but), None
        self.at = Progress(at.step, at.now, turn, at.next_task, at.decisions, excluded=at.excluded)

    # -- waiting ---------------------------------------------------------------------------------------------

    def _warm(self) -> bool:
        """Return whether the warm-up is over: enough clients answered, or no task of it is in flight."""
        left = any(task in self.flight.tasks for task in self.at.warming)
        return not left or self.flight.answered(self.at.warming) >= self.at.quorum

    # -- deciding --------------------------------------------------------------------------------------------

    def _ended(self, available: Iterable[ClientId] | None) -> Due:
        """Return what is due when the policy's wait is over: the end of the round, or the policy's next decision."""
        if self.at.stand_in or self.policy.rounds:
            if self.at.training:
                self.flight.go_on(late := self.flight.drop([task.id for task in self.flight.mine()[0]]))
                self.at.turn.warmed += [task.client for task in late]
            self.at.stand_in = self.at.training = False
            return self._execute(ending(*self.flight.mine(), self.at.turn.mode))
        return self._execute(self.decide(self.view_of(self.reachable(available) & self.ready())))

    def _open(self, reachable: BoolArray) -> Due:
        """Return what is due when the policy waits for nothing: a warm-up, a probe, or the policy's decision."""
        if (rows := full_batch(self, reachable)).size:
            if self.settings.warmup_trains and not (reachable & self.ready()).any():
                return self._first_round(rows)
            tasks = self.start("measure", rows)
            self.at.warming = {task.id for task in tasks}
            self.at.quorum = math.ceil(self.settings.warmup_wait * rows.size)
            return Due(tasks, warmup=True)
        ready = reachable & self.ready()
        if not ready.any():
            rows = lazy_batch(self, reachable & ~self.busy(), needed=True)
            if not rows.size:
                return NOTHING_DUE
            self.at.stand_in = True
            status = KNOWS_NOBODY.format(self.policy.name)
            why = Diagnostics(status=status, reasons=dict.fromkeys(rows.tolist(), "never seen"))
            return self._execute(Move(rows, self.among(rows), why=why))
        view = self.view_of(ready)
        if self.at.probed_step != self.step and (asked := self._ask(view)) is not None:
            return asked
        move = self.decide(view)
        newcomers = lazy_batch(self, reachable & ~ready & ~self.busy())
        due = self._execute(move)
        return replace(due, tasks=(*due.tasks, *self.start("measure", newcomers))) if newcomers.size else due

    def _first_round(self, rows: IntArray) -> Due:
        """Start a warm-up that is also the first round: all these clients train, and `warmup_wait` of them suffice."""
        self.at.stand_in = self.at.training = True
        self.ledger.columns["asked"][rows] = True
        quorum = math.ceil(self.settings.warmup_wait * rows.size)
        why = Diagnostics(
            status=f"warm-up: {self.policy.name} knows too little of {rows.size} clients; all train, and those count "
            "that answer first",
            reasons=dict.fromkeys(rows.tolist(), "warm-up"),
        )
        return self._execute(Move(rows, self.among(rows), wait=Wait(quorum), why=why))

    def _ask(self, view: View) -> Due | None:
        """Return the probe tasks that the policy wants before it decides; None = it wants no probe."""
        probe = self.policy.probe(self.state, view, stream(self.settings.seed, "probe", self.step))
        if probe is not None:
            check_probe(probe, view, self.policy.name, self.ledger_name)
        self.at.probed_step = self.step
        if probe is None:
            return None
        self.at.probing = True
        return Due(self.start("probe", probe.clients, probe=probe.kind, samples=probe.samples))

    def _execute(self, move: Move) -> Due:
        """Carry out a policy's move: return its step and its new tasks."""
        step = None
        if move.apply is not None:
            tasks = [self.flight.in_hand(task) for task in move.apply.ids.tolist()]
            weights, scale = self._capped(tasks, move.apply.weights, move.apply.mode)
            dropped = self.flight.drop(move.drop.tolist())
            pairs = tuple(zip(tasks, weights.tolist(), strict=True))
            self._step = step = Step(self.step + 1, pairs, move.apply.mode, dropped, scale)
            self.flight.go_on(step.dropped if self.goes_on else ())
        self.at.until = self.now + min(move.wait.seconds, self.settings.deadline)
        self.at.wait = move.wait if move.start.size or self.flight.flying else None
        turn = self.at.turn
        if move.start.size or move.why.facts:  # a step that starts no task may have facts too
            turn.why, turn.mode = move.why, move.mode
        if not move.start.size:
            return Due((), step)
        if step is None and not self.flight.flying:
            turn.began = self.now
        version = self.step if step is None else step.number
        return Due(self.start("train", move.start, move.weights, version=version), step)

    def step_of(self, tasks: Sequence[Task], weights: FloatArray, mode: Mode) -> Step:
        """Return the step made of these tasks' answers, with capped weights; mode `average` scales them to sum 1."""
        total = float(weights.sum())
        weights = weights / total if mode == "average" and total > 0 else weights
        weights, scale = self._capped(list(tasks), weights, mode)
        return Step(self.step + 1, tuple(zip(tasks, weights.tolist(), strict=True)), mode, (), scale)

    # -- saving ----------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the whole state into the folder `path`; the saved state there stays valid until the write is done."""
        saving.save(self, folder_of(path))

    @classmethod
    def restore(cls, path: str | Path, policy: Any = None, *, moments: MomentStore | None = None) -> Coordinator:
        """Return the coordinator saved in the folder `path`; `policy` is only needed if it is not registered."""
        return saving.restore(folder_of(path), policy, moments)[0]

    def check_saveable(self) -> None:
        """Raise OrderError while a step is due but not made: a restored server could not know if the model moved."""
        if self._step is not None:
            raise OrderError(f"save() came while step {self._step.number} is not made: make it, and call stepped()")
