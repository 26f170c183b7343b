"""Carries the coordinator's tasks out and brings replies back, on one of two clocks.

`server`: time is this machine's. A client took as long as it was from sending its task to seeing its reply, with
whatever the framework needs for itself: deadlines are made of the same seconds. `reported`: time is what clients
report, as with delay models on one machine. All replies are really awaited, and each counts as come when its seconds
have passed, as in the simulator.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Protocol

from fedpace._base.errors import InputError
from fedpace.core.coordinator import Coordinator
from fedpace.core.events import Event, Events
from fedpace.core.tasks import Task
from fedpace.core.types import Outcome
from fedpace.hosting.reader import Reader
from fedpace.hosting.replies import Raw, Reply, short
from fedpace.hosting.sketch import Arrays

POLL = 0.5
"""Seconds between looks for replies."""
PROBE_SECONDS = 600.0
"""How long asked clients may take to answer: nobody answering must not stop the training."""

MOST_TOLD = 10_000
"""Failures that are remembered as logged: clients that make up reasons must not fill the memory."""


class Transport(Protocol):
    """How tasks travel."""

    def send(self, tasks: Sequence[Task]) -> None:
        """Send tasks out, each with the current model."""
        ...

    def collect(self) -> Iterable[tuple[int, Callable[[], Raw] | str]]:
        """Return what has come since: a task's id, and what unpacks its reply, or why there is none."""
        ...

    def wait(self, seconds: float) -> None:
        """Return after so many seconds, or when something has come."""
        ...


class Courier:
    """The tasks of one coordinator on their way.

    Args:
        coordinator: whose.
        read: reads replies to tasks.
        log: where warnings go.
        reported: which clock.
    """

    def __init__(self, coordinator: Coordinator, read: Reader, log: logging.Logger, *, reported: bool) -> None:
        self._coordinator, self._read, self._log, self.reported = coordinator, read, log, reported
        self.patience = math.inf
        """Seconds after which a client that says nothing has failed."""
        self.models: dict[int, Arrays] = {}
        """Version -> model: the current one, and those that clients in flight were given."""
        self.replies: dict[int, Reply] = {}
        """Task -> reply, until it is applied."""
        self._logged: set[tuple[str, str]] = set()
        """Failures that were logged: a client that fails alike in every round is named once."""
        self._latencies: deque[float] = deque(maxlen=64)
        """Seconds from sending to seeing the last replies, less what clients say that they computed."""
        self.events = Events()
        """Where time is reported: when the seconds of replies have passed."""
        self._held: dict[int, Outcome] = {}
        """What these replies say, by their tasks."""
        self._sent: dict[int, float] = {}
        """Task -> when it was sent, of those that nothing was heard of."""
        self._began = monotonic() - coordinator.now

    @property
    def now(self) -> float:
        """Seconds since the first start, by the clock that counts."""
        return self._coordinator.now if self.reported else max(self._coordinator.now, monotonic() - self._began)

    @property
    def latency(self) -> float:
        """What the framework itself needs for a task, at the least: a deadline below it says nothing of clients."""
        return 0.0 if self.reported else max(0.0, min(self._latencies, default=0.0))

    def send(self, transport: Transport, tasks: Sequence[Task]) -> None:
        """Send tasks out."""
        if tasks:
            now = monotonic()
            self._sent |= {task.id: now for task in tasks}
            transport.send(tasks)

    def take_in(self, transport: Transport) -> None:
        """Hand over what has come by now."""
        for number, came in transport.collect():
            self._sort(number, came)
        for task, _ in self.events.come(self._coordinator, self._coordinator.now):
            self._hand_over(task, self._held.pop(task.id))

    def pass_time(self, transport: Transport) -> None:
        """Wait for something to happen; where time is reported, go there once every reply has come."""
        flight = self._coordinator.flight.tasks
        self._sent = {number: since for number, since in self._sent.items() if number in flight}
        if self.reported and not self._sent:
            self._coordinator.advance(self.events.next_instant(self._coordinator))
            return
        transport.wait(min(POLL, max(0.0, self._coordinator.wake_at - self.now)) if not self.reported else POLL)
        now = monotonic()
        for number, since in list(self._sent.items()):
            limit = min(self.patience, PROBE_SECONDS if flight[number].kind == "probe" else math.inf)
            if now - since >= limit:
                self._sort(number, f"nothing was heard of it for {limit:g} s")

    def tidy(self) -> None:
        """Forget models and replies that no task needs any more."""
        flight = self._coordinator.flight
        wanted = {task.id for task in flight.mine()[1]} | set(flight.tasks)
        self.replies = {number: reply for number, reply in self.replies.items() if number in wanted}
        self._held = {number: outcome for number, outcome in self._held.items() if number in wanted}
        versions = flight.versions | {self._coordinator.step}
        self.models = {version: model for version, model in self.models.items() if version in versions}

    @property
    def coming(self) -> dict[int, Outcome]:
        """What was measured whose seconds have not passed: it has come, and outlives this server."""
        flight = self._coordinator.flight.tasks
        return {n: held for n, held in self._held.items() if n in flight and flight[n].kind == "measure"}

    def expect(self, coming: Mapping[int, Outcome]) -> None:
        """Take over what had come to an earlier server."""
        began = {number: self._coordinator.flight.tasks[number].began for number in coming}
        self._held |= coming
        self.events.add(Event(began[number] + held.seconds, number, held.seconds) for number, held in coming.items())

    def drop(self, task: Task, why: str) -> None:
        """Do without a client's reply, and say once why."""
        client = str(task.client)
        self.replies.pop(task.id, None)
        if (client, why) not in self._logged:
            self._logged = {*self._logged, (client, why)} if len(self._logged) < MOST_TOLD else {(client, why)}
            self._log.warning("fedpace: %r failed in this round: %s", client, why)

    def _sort(self, number: int, came: Callable[[], Raw] | str) -> None:
        """Take in one reply, or the news that there will be none."""
        since = self._sent.pop(number, monotonic())
        task = self._coordinator.flight.tasks.get(number)
        if task is None:
            return  # nobody waits for it any more
        if isinstance(came, str):
            self._fail(task, came)
            return
        try:
            reply, outcome = self._read(task, came, self.models[task.step])
        except InputError as problem:
            self._fail(task, str(problem))
            return
        if task.kind == "train":
            self.replies[number] = reply
        if not math.isnan(reply.note.compute):
            self._latencies.append(monotonic() - since - reply.note.compute)
        if not self.reported:
            self._hand_over(task, replace(outcome, seconds=self.now - task.began))
            return
        seconds = reply.note.seconds
        if math.isnan(seconds):  # probes are free unless clients say otherwise
            seconds = 0.0 if task.kind == "probe" else monotonic() - since
        self._held[number] = replace(outcome, seconds=seconds)
        self.events.add([Event(task.began + seconds, number, seconds)])

    def _hand_over(self, task: Task, outcome: Outcome) -> None:
        try:
            self._coordinator.receive(task.id, self._read.fitting(outcome), self.now)
        except InputError as problem:
            self._fail(task, str(problem))

    def _fail(self, task: Task, why: str) -> None:
        why = short(why)
        self.drop(task, why)
        self._coordinator.lost(task.id, self.now, why=why)
