"""`check_policy` checks the contract of policies, without a model: answers come one by one, some late, some never."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from fedpace._base.rng import stream
from fedpace.core.coordinator import Coordinator
from fedpace.core.settings import Settings, Warmup
from fedpace.core.tasks import Actions, Policy, Step, Task
from fedpace.core.types import Need
from fedpace.testing.selector_checks import ToyFleet, check_shape, rule

Event = tuple[float, int]
"""Completion time of a task, and its id."""


@dataclass(eq=False)
class ToyTransport:
    """Delivers tasks to a toy fleet and answers to the coordinator, and checks the rules of the contract."""

    fleet: ToyFleet
    coordinator: Coordinator
    away: frozenset[int] = frozenset()
    """Clients that cannot be reached."""
    events: list[Event] = field(default_factory=list)
    steps: list[tuple[Any, ...]] = field(default_factory=list)
    """The steps made so far, as plain values."""

    @property
    def _name(self) -> str:
        return str(self.coordinator.policy.name)

    def play(self, steps: int) -> list[tuple[Any, ...]]:
        """Run `steps` more steps and return them."""
        until = self.coordinator.step + steps
        idle = 0
        while self.coordinator.step < until:
            busy = {task.client for task in self.coordinator.tasks}
            due = self.coordinator.due(self.coordinator.now, self._present())
            if due.step is not None:
                self._check_step(due.step)
                self.coordinator.stepped()
            dropped = () if due.step is None else due.step.dropped  # a dropped client may start again at once
            self._carry(due, busy - {task.client for task in dropped})
            idle = 0 if due else idle + 1
            rule(idle < 10_000, f"{self._name} was asked 10,000 times, and neither steps nor starts anybody")
            if not due:
                self._pass_time()
        return self.steps[-steps:]

    def _present(self) -> list[Any]:
        return [client for client in self.coordinator.clients if client not in self.away]

    def _carry(self, due: Actions, busy: set[Any]) -> None:
        for task in due.tasks:
            client = _client(task)
            rule(client not in busy, f"{self._name} gives client {client} a task while it is at another")
            rule(client not in self.away, f"{self._name} starts client {client}, which cannot be reached")
            busy.add(client)
            jitter = float(stream(self.fleet.seed, "toy jitter", task.id).uniform(0.5, 1.5))
            slow = 1.0 if self.fleet.tied else jitter
            heappush(self.events, (self.coordinator.now + slow * self.fleet.delay(client), task.id))

    def _pass_time(self) -> None:
        flying = {task.id: task for task in self.coordinator.tasks}
        while self.events and self.events[0][1] not in flying:
            heappop(self.events)
        wake = self.coordinator.wake_at
        rule(bool(self.events) or wake < np.inf, f"{self._name} waits, but nobody is at work")
        if not self.events or wake < self.events[0][0]:
            self.coordinator.advance(wake)
            return
        when, number = heappop(self.events)
        self.coordinator.receive(number, self.fleet.outcome(_client(flying[number]), number), when)

    def _check_step(self, step: Step) -> None:
        weights = np.array([weight for _, weight in step.answers])
        ids = [task.id for task, _ in step.answers]
        rule(len(set(ids)) == len(ids), f"{self._name} applies an answer twice in step {step.number}")
        rule(bool(np.isfinite(weights).all()), f"{self._name} gave a weight that is not finite in step {step.number}")
        if step.mode == "average" and weights.size:
            proper = (weights >= 0).all() and abs(float(weights.sum()) - 1.0) < 1e-9
            rule(bool(proper), f"{self._name} averages with weights {weights.tolist()}: they must sum to 1")
        applied = tuple((task.client, task.job, task.step, round(weight, 9)) for task, weight in step.answers)
        self.steps.append((step.number, round(self.coordinator.now, 9), step.mode, applied))


def check_policy(policy: Policy[Any], *, clients: int = 14, steps: int = 12) -> None:
    """Raise a ContractError if `policy` breaks a rule of the contract. `clients` must be enough for its cohorts."""
    check_shape(policy)
    rule(not policy.rounds, f"{policy.name} works in rounds: check_selector is for it")
    for fleet in (
        ToyFleet(clients),
        ToyFleet(clients, seed=1, failing=0.3),
        ToyFleet(clients, seed=2, tied=True),
        ToyFleet(clients, seed=3, tied=True, failing=0.5),
    ):
        for warmup in ("full", "lazy"):
            _transport(policy, fleet, warmup=warmup).play(steps)
        _transport(policy, fleet, deadline=15.0).play(steps)
    _check_repeatable(policy, ToyFleet(clients, seed=5), steps)
    _check_restored(policy, ToyFleet(clients, seed=6, failing=0.2), steps)
    _check_churn(policy, ToyFleet(2 * clients, seed=7), clients)


def _transport(
    policy: Policy[Any], fleet: ToyFleet, *, warmup: Warmup = "full", deadline: float = np.inf, clients: int = 0
) -> ToyTransport:
    settings = Settings(fleet.seed, shares="samples", warmup=warmup, deadline=deadline)
    coordinator = Coordinator(policy, settings, offers=frozenset(Need))
    fleet.join(coordinator, list(range(clients or fleet.clients)))
    return ToyTransport(fleet, coordinator)


def _check_repeatable(policy: Policy[Any], fleet: ToyFleet, steps: int) -> None:
    first, second = (_transport(policy, fleet).play(steps) for _ in range(2))
    rule(first == second, f"{policy.name} decided differently in two runs of one seed")


def _check_restored(policy: Policy[Any], fleet: ToyFleet, steps: int) -> None:
    """Save with tasks in flight at several times: the restored policy must continue in the same way."""
    for played in (1, 4):
        first = _transport(policy, fleet)
        first.play(played)
        with tempfile.TemporaryDirectory() as folder:
            first.coordinator.save(folder)
            second = ToyTransport(fleet, Coordinator.restore(folder, policy), events=list(first.events))
        heapify(second.events)
        rule(
            second.play(steps) == first.play(steps),
            f"{policy.name} went on differently after save and restore: its state must hold all that it remembers",
        )


def _check_churn(policy: Policy[Any], fleet: ToyFleet, clients: int) -> None:
    """Let clients join, be away for a while, and leave during their tasks."""
    transport = _transport(policy, fleet, clients=clients)
    transport.play(3)
    fleet.join(transport.coordinator, list(range(clients, 2 * clients)))
    transport.away = frozenset(range(1, 2 * clients, 3))
    transport.play(3)
    gone = range(0, clients, 2)
    transport.coordinator.leave(gone)
    for _, _, _, applied in transport.play(3):
        left = [client for client, *_ in applied if client in gone]
        rule(not left, f"{policy.name} applied answers of clients that had left: {left}")


def _client(task: Task) -> int:
    client: int = task.client  # type: ignore[assignment]
    return client
