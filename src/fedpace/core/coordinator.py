"""The server without its wires: who is to do what, what came back, when the model steps. No I/O, no threads, no torch.

    coordinator = Coordinator(selector, Settings(seed=0))
    coordinator.join(clients)
    while training:
        do = coordinator.due(now, available)
        if do.step is not None:
            ...                                  # make the next model of the answers in do.step
            coordinator.stepped(now)
        for task in do.tasks:
            ...                                  # send the model of version task.step to task.client
        ...                                      # wait for an answer, or until coordinator.wake_at
        coordinator.receive(task.id, Outcome(task.client, seconds=...), now)       # or lost(task.id, now)

A transport carries tasks out and brings answers back, and knows nothing else: the simulator delivers answers at their
virtual times, Flower and NVFlare as messages come. Selection, warm-up, probes, deadlines, failures and versions of the
model are here, once. All state is plain and is saved (`saving.py`).
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
    """Tasks in flight, the ledger, and a policy that decides.

    Args:
        policy: a Policy, or a Selector, which then works in rounds.
        settings: seed, shares, warm-up and deadline; see `Settings`.
        moments: an empty store of moments, where not the usual one.
        offers: what the host will report; compared with the policy's needs at once. None: not declared.
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
        """Say what to do now; nothing to do means that something must be awaited.

        Args:
            now: seconds, virtual or real; may not run backwards.
            available: who can be reached; None = everybody in the roster.
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
        """Take in an answer; False = nobody waits for it any more. A refused one changes nothing: report it as lost."""
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
        """Note that a task failed, and why; `seconds` = how long it was waited for, where that says how slow it is."""
        started = self.flight.tasks.get(whole_task(task))
        if started is None:
            return False
        if why:
            self.at.turn.failures[str(started.client)] = why
        return self.receive(task, Outcome(started.client, seconds=seconds, finished=False), now)

    def stepped(
        self, now: float | None = None, *, seconds: float | None = None, facts: Mapping[str, float] | None = None
    ) -> Turn:
        """Go on after the step: the facts in its answers are folded, and the policy learns.

        Args:
            now: as for `due`.
            seconds: how long the answers were waited for; None = since their tasks began, by `now`.
            facts: what the server step says of itself (`fedpace.core.stepping.step_facts`); the policy is told.
        """
        if self._step is None:
            raise OrderError("stepped() came without a step: due() says when one is to be made")
        self.advance(now)
        step, turn = self._step, self.at.turn
        turn.seconds = self.now - turn.began if seconds is None else valid_seconds(seconds, "a step")
        # In the order in which the tasks began: reports and ledger must not depend on who was faster.
        ended = self.flight.take_step(task.id for task, _ in step.answers)
        waited = math.nan if self.goes_on else ordinary(turn.seconds)  # those that go on will tell how long they took
        ended += [(task, Outcome(task.client, seconds=waited, finished=False)) for task in step.dropped]
        ended.sort(key=lambda pair: pair[0].id)
        if not self.policy.rounds:  # rounds weigh those whom they start, others what they have in hand
            weights = {task.id: weight for task, weight in step.answers}
            ended = [(task._replace(weight=weights.get(task.id, 0.0)), outcome) for task, outcome in ended]
        settled = [(task, outcome) for task, outcome in ended if task.client in self.ledger]
        self.ledger.check([outcome for _, outcome in settled])  # what was told by functions was not looked at before
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
        if excluded and not self.policy.rounds:  # nobody waits for them any more, nor uses what is in hand of them
            self._lose(excluded)
        return turn

    def _use_weights(self, step: Step) -> None:
        """Charge clients for the weight that they had in a step."""
        if self.ledger.trust.on and step.answers:
            rows = np.array(self._rows_of([task for task, _ in step.answers]), dtype=np.int64)
            weights = step.scale * np.array([weight for _, weight in step.answers])
            self.ledger.trust.use_weights(rows, weights, self.shares(), step.number)

    def ask(self, now: float | None = None, available: Iterable[ClientId] | None = None) -> Due:
        """Say which probes the policy wants before it decides, and decide nothing; `due` does both."""
        reachable = self.reachable(available)
        ready = reachable & self.ready()
        if full_batch(self, reachable).size or not ready.any():
            return NOTHING_DUE
        self.advance(now)
        return self._ask(self.view_of(ready)) or NOTHING_DUE

    def go_on(self) -> None:
        """Take in what was measured so far, and wait for no more of it before the policy is asked."""
        measured = [(task, outcome) for task, outcome in self.flight.take("measure") if task.client in self.ledger]
        self.fold(measured)
        self.at.turn.heard += [t.client for t, outcome in measured if outcome.finished and t.id not in self.at.warming]
        self.at.warming = set()

    def abandon(self, *, but: Collection[int] = ()) -> None:
        """Give up what is in flight and the models in hand, as after a restart in mid-round: nobody is blamed.

        Args:
            but: tasks to measure whose answers will come nevertheless. What was measured already stays in hand.
        """
        given_up = [task for task in self.tasks if task.kind == "measure" and task.id not in but]
        self.ledger.columns["asked"][self.ledger.rows(task.client for task in given_up)] = False
        at = self.at
        turn = at.turn.give_up(self.flight.flying + self.flight.held, at.now)
        self.flight, self._step = self.flight.measuring(but), None
        self.at = Progress(at.step, at.now, turn, at.next_task, at.decisions, excluded=at.excluded)

    # -- waiting ---------------------------------------------------------------------------------------------

    def _warm(self) -> bool:
        """Whether the warm-up that the policy waits for has come far enough."""
        left = any(task in self.flight.tasks for task in self.at.warming)
        return not left or self.flight.answered(self.at.warming) >= self.at.quorum

    # -- deciding --------------------------------------------------------------------------------------------

    def _ended(self, available: Iterable[ClientId] | None) -> Due:
        """The policy's wait is over: a round ends as all rounds do; other policies are asked."""
        if self.at.stand_in or self.policy.rounds:
            if self.at.training:
                self.flight.go_on(late := self.flight.drop([task.id for task in self.flight.mine()[0]]))
                self.at.turn.warmed += [task.client for task in late]
            self.at.stand_in = self.at.training = False
            return self._execute(ending(*self.flight.mine(), self.at.turn.mode))
        return self._execute(self.decide(self.view_of(self.reachable(available) & self.ready())))

    def _open(self, reachable: BoolArray) -> Due:
        """None of the policy's tasks is out: meet newcomers, probe, decide."""
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
        """Let everybody that the policy must meet train: a warm-up that is a round, and need not wait for all."""
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
        """Ask the policy whom it wants to hear first; None = nobody."""
        probe = self.policy.probe(self.state, view, stream(self.settings.seed, "probe", self.step))
        if probe is not None:
            check_probe(probe, view, self.policy.name, self.ledger_name)
        self.at.probed_step = self.step
        if probe is None:
            return None
        self.at.probing = True
        return Due(self.start("probe", probe.clients, probe=probe.kind, samples=probe.samples))

    def _execute(self, move: Move) -> Due:
        """Turn a move into a step and tasks."""
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
        if move.start.size or move.why.facts:  # a step that starts nobody has its reasons too
            turn.why, turn.mode = move.why, move.mode
        if not move.start.size:
            return Due((), step)
        if step is None and not self.flight.flying:
            turn.began = self.now
        version = self.step if step is None else step.number
        return Due(self.start("train", move.start, move.weights, version=version), step)

    def step_of(self, tasks: Sequence[Task], weights: FloatArray, mode: Mode) -> Step:
        """Return the step that these tasks' answers make; in mode `average` their weights are brought to a sum of 1."""
        total = float(weights.sum())
        weights = weights / total if mode == "average" and total > 0 else weights
        weights, scale = self._capped(list(tasks), weights, mode)
        return Step(self.step + 1, tuple(zip(tasks, weights.tolist(), strict=True)), mode, (), scale)

    # -- saving ----------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write everything into the folder `path`, replacing what is there only when all is written."""
        saving.save(self, folder_of(path))

    @classmethod
    def restore(cls, path: str | Path, policy: Any = None, *, moments: MomentStore | None = None) -> Coordinator:
        """Read a coordinator back; `policy` is only needed where it is not registered."""
        return saving.restore(folder_of(path), policy, moments)[0]

    def check_saveable(self) -> None:
        """Refuse to be saved between `due` and `stepped`: whether the model has moved could not be told."""
        if self._step is not None:
            raise OrderError(f"save() came while step {self._step.number} is not made: make it, and call stepped()")
