"""The progress of a coordinator as plain values that can be saved: its phase, its clock, its wait and its log."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from fedpace.core.tasks import Task, Wait
from fedpace.core.types import ClientId, Diagnostics, Mode, Outcome

if TYPE_CHECKING:
    from fedpace.core.task_table import TaskTable


class Phase(StrEnum):
    """What a coordinator does now.

        JOINING -> DECIDING -> WAITING -> STEPPING -> DECIDING or WAITING ...

    From DECIDING it may also go to WARMING_UP or PROBING, and from there back to DECIDING.
    """

    JOINING = "joining"
    """No client has joined yet."""
    WARMING_UP = "warming up"
    """Clients measure facts that the policy needs before its first decision."""
    PROBING = "probing"
    """Clients return the loss or gradient that the policy asked for."""
    DECIDING = "deciding"
    """The next `due` lets the policy decide, if clients are available."""
    WAITING = "waiting"
    """The policy waits for answers or for its deadline."""
    STEPPING = "stepping"
    """The host makes the step that `due` returned; then it calls `stepped`."""


@dataclass(eq=False)
class StepLog:
    """The record of what happened from one step to the next; `Coordinator.stepped` returns it."""

    why: Diagnostics = field(default_factory=Diagnostics)
    """Why the policy started its last tasks."""
    mode: Mode = "average"
    began: float = 0.0
    """Time at which the step's tasks started, or the last step was made."""
    warmed: list[ClientId] = field(default_factory=list)
    """Clients with a measurement task."""
    heard: list[ClientId] = field(default_factory=list)
    """Clients with a measurement that arrived after the policy had stopped waiting for it."""
    probed: list[ClientId] = field(default_factory=list)
    clients: list[ClientId] = field(default_factory=list)
    """Clients with tasks that ended in the step, in order of the tasks' start."""
    weights: list[float] = field(default_factory=list)
    """Weight of each of these tasks."""
    failed: list[ClientId] = field(default_factory=list)
    """Those of `clients` that failed or were late."""
    failures: dict[str, str] = field(default_factory=dict)
    """Client name -> why it failed, if known."""
    clipped: dict[str, float] = field(default_factory=dict)
    """Client name -> factor below 1 that its update or buffers were multiplied by."""
    capped: dict[str, float] = field(default_factory=dict)
    """Client name -> its weight after the cap, for clients with a larger weight from the policy."""
    left_out: list[str] = field(default_factory=list)
    """Names of clients with updates that a robust rule left out of the step."""
    excluded: list[str] | None = None
    """Names of all clients that are excluded after this step, if that changed; None = no change."""
    task_work: dict[str, float] = field(default_factory=dict)
    """Client name -> its `Task.work`, for tasks that ended in the step with work other than 1."""
    seconds: float = 0.0
    """How long the server waited for the tasks of this step."""
    work: float = 0.0
    """Client-seconds since the last step: a client works from the start of a task until its answer, failure or end."""
    sent: int = 0
    """Number of models sent to clients, for tasks of any kind."""
    returned: int = 0
    """Number of trained models received, for tasks that ended in the step."""
    reported: int = 0
    """Bytes of all moments and update sketches received, also from measurements and probes."""
    wasted: int = 0
    """Number of training tasks that failed or were given up. Answers used in a step are not wasted, even with weight 0:
    some server steps keep them in memory."""

    def settle(self, ended: Sequence[tuple[Task, Outcome]]) -> None:
        """Record the results of the tasks that ended in the step, in order of their start."""
        self.clients, self.weights = [task.client for task, _ in ended], [task.weight for task, _ in ended]
        self.failed = [task.client for task, outcome in ended if not outcome.finished]
        self.task_work = {str(task.client): task.work for task, _ in ended if task.work != 1}
        self.returned += len(ended) - len(self.failed)
        self.wasted += len(self.failed)

    def explained(self, ids: Sequence[ClientId]) -> dict[str, Any]:
        """Return the facts of the choice and of the step, with the reasons for `clients` only, to keep it short."""
        chosen = set(self.clients)
        recorded = {str(ids[row]): reason for row, reason in self.why.reasons.items() if ids[row] in chosen}
        told: dict[str, Any] = {
            "reasons": recorded,
            "failures": dict(self.failures),
            "clipped": dict(self.clipped),
            "capped": dict(self.capped),
            "left out": list(self.left_out),
            "work": dict(self.task_work),
        }
        told = {name: value for name, value in told.items() if value}
        if self.excluded is not None:
            told["excluded"] = list(self.excluded)
        return {**self.why.facts, **told}

    def move_up(self, rows: Mapping[int, int]) -> None:
        """Renumber the rows in the reasons after clients have left; `rows`: old row -> new row of remaining clients."""
        if not self.why.reasons:
            return
        facts = dict(self.why.facts)
        if isinstance(told := facts.get("corrected"), tuple):
            facts["corrected"] = tuple((rows[int(row or 0)], *rest) for row, *rest in told if row in rows)
        reasons = {rows[row]: reason for row, reason in self.why.reasons.items() if row in rows}
        self.why = replace(self.why, facts=facts, reasons=reasons)

    def count_reported(self, outcomes: Sequence[Outcome]) -> None:
        """Add the bytes of moments and update sketches to `reported`."""
        for outcome in outcomes:
            if outcome.moment is not None or outcome.update is not None:
                self.reported += getattr(outcome.moment, "nbytes", 0) + getattr(outcome.update, "nbytes", 0)

    def give_up(self, tasks: int, now: float) -> StepLog:
        """Return a new record that starts now and keeps the costs so far; `tasks` given up tasks count as wasted."""
        following = StepLog(began=now, work=self.work, sent=self.sent, returned=self.returned, reported=self.reported)
        following.wasted = self.wasted + tasks
        return following


@dataclass(eq=False)
class Progress:
    """The rest of a coordinator's state, beside ledger, tasks and the policy's state; it says when a wait ends."""

    phase: Phase = Phase.JOINING
    step: int = 0
    now: float = 0.0
    log: StepLog = field(default_factory=StepLog)
    next_task: int = 0
    decisions: int = 0
    """Decisions of the policy since the last step; part of the key of its random stream."""
    wait: Wait | None = None
    """What the policy waits for; None = the policy can decide now."""
    until: float = math.inf
    """Time at which the wait's deadline ends."""
    stand_in: bool = False
    """Whether the coordinator chose this round's clients, because the policy knows too little about all of them."""
    training: bool = False
    """Whether this round is also the warm-up (`Settings.warmup_trains`): its stragglers continue as measurements."""
    warming: set[int] = field(default_factory=set)
    """Ids of the tasks of a warm-up that must end before the policy decides."""
    quorum: int = 0
    """Number of answers that ends this warm-up."""
    excluded: list[str] = field(default_factory=list)
    """Names of the clients that get no task for now, because the validation set refused their updates."""
    probed_step: int = -1
    accepts_work: bool = False
    """Whether clients train as much as `Task.work` says (`Need.WORK`)."""

    def wait_is_over(self, table: TaskTable, needed: int) -> bool:
        """Return whether the policy's wait is over.

        It is over when no task is in flight. With at least one answer, it is also over at the quorum or the deadline,
        unless a sum needs more answers.

        Args:
            table: the current tasks.
            needed: fewest answers that can end a round; 0 = any number.
        """
        if self.wait is None:
            return False
        flying, held = self._counted(table, self.wait)
        quorum = 0 < self.wait.answers <= held
        ended = held > 0 and (quorum or self.now >= self.until)
        return not flying or (ended and not _too_few(table, needed))

    def wake_at(self, table: TaskTable, needed: int) -> float:
        """Return the time at which the wait ends even if no answer arrives; infinity = only an answer ends it."""
        if self.wait is None or not self._counted(table, self.wait)[1] or _too_few(table, needed):
            return math.inf
        return self.until

    def is_warm(self, table: TaskTable) -> bool:
        """Return whether the warm-up is over: enough clients answered, or no task of it is in flight."""
        left = any(task in table.tasks for task in self.warming)
        return not left or table.answered(self.warming) >= self.quorum

    def _counted(self, table: TaskTable, wait: Wait) -> tuple[int, int]:
        """Return how many tasks of the wait are in flight, and how many are answered but not yet used."""
        return table.of(self.step) if wait.fresh else (table.flying, table.held)


def _too_few(table: TaskTable, needed: int) -> bool:
    """Return whether a round must go on: it has fewer answers than it needs, and tasks in flight can bring them."""
    if not needed:
        return False
    flying, held = (sum(task.weight != 0 for task in tasks) for tasks in table.policy_tasks())
    return held < needed <= held + flying
