"""How far a coordinator is, as plain values: what is saved, and what the diary is written from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedpace.core.tasks import Task, Wait
from fedpace.core.types import ClientId, Diagnostics, Mode, Outcome


@dataclass(eq=False)
class Turn:
    """What happened from one step to the next: an entry of the diary."""

    why: Diagnostics = field(default_factory=Diagnostics)
    """Of the tasks that the policy started last."""
    mode: Mode = "average"
    began: float = 0.0
    """When they were started."""
    warmed: list[ClientId] = field(default_factory=list)
    """Who was asked to measure."""
    heard: list[ClientId] = field(default_factory=list)
    """Whose measurement came when the policy had gone on without it."""
    probed: list[ClientId] = field(default_factory=list)
    clients: list[ClientId] = field(default_factory=list)
    """Whose tasks ended in the step, in the order in which they began."""
    weights: list[float] = field(default_factory=list)
    """What the policy gave each."""
    failed: list[ClientId] = field(default_factory=list)
    """Who of them crashed or was late."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why clients failed, by their names: where that is known."""
    clipped: dict[str, float] = field(default_factory=dict)
    """What updates were multiplied by that were too long, by the names of their clients."""
    capped: dict[str, float] = field(default_factory=dict)
    """Weights of clients that the policy gave more than they may have, by name."""
    left_out: list[str] = field(default_factory=list)
    """Clients whose updates a robust rule left out of the step, by name."""
    excluded: list[str] | None = None
    """Clients that are not asked from then on, by the evidence of a validation set; None = as before."""
    seconds: float = 0.0
    """How long they were waited for."""
    work: float = 0.0
    """Client-seconds since the step before: every client with a task works until it answers, fails or is given up."""
    sent: int = 0
    """Models that were sent out, with tasks of any kind."""
    returned: int = 0
    """Trained models that came back, of the tasks that ended in the step."""
    reported: int = 0
    """Bytes of the moments and update sketches that came with them, and of what was measured or probed."""
    wasted: int = 0
    """Tasks to train that ended without a part in a step: they failed or were given up. What a step is given counts as
    used whatever it weighs: some server steps remember answers of weight 0."""

    def settle(self, ended: Sequence[tuple[Task, Outcome]]) -> None:
        """Note what became of the tasks that ended in the step, in the order in which they began."""
        self.clients, self.weights = [task.client for task, _ in ended], [task.weight for task, _ in ended]
        self.failed = [task.client for task, outcome in ended if not outcome.finished]
        self.returned += len(ended) - len(self.failed)
        self.wasted += len(self.failed)

    def explained(self, ids: Sequence[ClientId]) -> dict[str, Any]:
        """Return the facts of the choice, and the reasons for those whose tasks ended: of others there are many."""
        chosen = set(self.clients)
        recorded = {str(ids[row]): reason for row, reason in self.why.reasons.items() if ids[row] in chosen}
        told: dict[str, Any] = {
            "reasons": recorded,
            "failures": dict(self.failures),
            "clipped": dict(self.clipped),
            "capped": dict(self.capped),
            "left out": list(self.left_out),
        }
        told = {name: value for name, value in told.items() if value}
        if self.excluded is not None:
            told["excluded"] = list(self.excluded)
        return {**self.why.facts, **told}

    def move_up(self, rows: Mapping[int, int]) -> None:
        """Let reasons be of rows as they are now that clients have left: old row -> row, of those who stay."""
        if not self.why.reasons:
            return
        facts = dict(self.why.facts)
        if isinstance(told := facts.get("corrected"), tuple):
            facts["corrected"] = tuple((rows[int(row or 0)], *rest) for row, *rest in told if row in rows)
        reasons = {rows[row]: reason for row, reason in self.why.reasons.items() if row in rows}
        self.why = replace(self.why, facts=facts, reasons=reasons)

    def count_reported(self, outcomes: Iterable[Outcome]) -> None:
        """Count the bytes of what was reported."""
        for outcome in outcomes:
            if outcome.moment is not None or outcome.update is not None:
                self.reported += getattr(outcome.moment, "nbytes", 0) + getattr(outcome.update, "nbytes", 0)

    def give_up(self, tasks: int, now: float) -> Turn:
        """Return a turn that begins now, after so many tasks were given up with it: what they cost is not forgotten."""
        following = Turn(began=now, work=self.work, sent=self.sent, returned=self.returned, reported=self.reported)
        following.wasted = self.wasted + tasks
        return following


@dataclass(eq=False)
class Progress:
    """Everything beside the ledger, the tasks and the policy's state."""

    step: int = 0
    now: float = 0.0
    turn: Turn = field(default_factory=Turn)
    next_task: int = 0
    decisions: int = 0
    """Of the policy's since the last step: they key its random streams."""
    wait: Wait | None = None
    """What the policy waits for; None = it is to be asked."""
    until: float = math.inf
    stand_in: bool = False
    """Whether newcomers are the round, since the policy knows nobody."""
    training: bool = False
    """Whether they are a warm-up that trains: who misses its end is heard later."""
    warming: set[int] = field(default_factory=set)
    """Tasks of a warm-up that the policy waits for."""
    quorum: int = 0
    """Answers to them that suffice."""
    excluded: list[str] = field(default_factory=list)
    """Clients that are not asked, by the evidence of a validation set, by name."""
    probing: bool = False
    probed_step: int = -1
