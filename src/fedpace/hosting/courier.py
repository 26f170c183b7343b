"""The reply loop of a live server: it sends the coordinator's tasks and collects replies, on one of two clocks.

- `server`: real time on this machine. A client's seconds run from sending the task to reading the reply. They include
  the overhead of the framework, and so do deadlines.
- `reported`: virtual time from the seconds that clients report, for delay models on one machine. The server waits for
  all replies in real time. Each reply counts as received when its reported seconds have passed, as in the simulator.
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
"""Seconds between two checks for replies."""
PROBE_SECONDS = 600.0
"""Longest wait for the answer to a probe: a silent client must not stop training."""

MOST_TOLD = 10_000
"""Maximum number of remembered log entries: clients with ever new failure reasons must not fill the memory."""


class Transport(Protocol):
    """Sends tasks to clients and collects their replies; each framework implements it."""

    def send(self, tasks: Sequence[Task]) -> None:
        """Send tasks to their clients, each with the current model."""
        ...

    def collect(self) -> Iterable[tuple[int, Callable[[], Raw] | str]]:
        """Return the news since the last call: task id, and a function that unpacks the reply or a failure reason."""
        ...

    def wait(self, seconds: float) -> None:
        """Return after this many seconds, or earlier when a reply arrives."""
        ...


class Courier:
    """Sends the tasks of one coordinator, and passes the replies to it.

    Args:
        coordinator: the coordinator.
        read: turns replies into outcomes.
        log: logger for warnings.
        reported: True = the clock `reported`, False = the clock `server`.
    """

    def __init__(self, coordinator: Coordinator, read: Reader, log: logging.Logger, *, reported: bool) -> None:
        self._coordinator, self._read, self._log, self.reported = coordinator, read, log, reported
        self.patience = math.inf
        """Real seconds after which a client without a reply has failed."""
        self.models: dict[int, Arrays] = {}
        """Version -> model: the current version, and the versions of tasks in flight or in hand."""
        self.replies: dict[int, Reply] = {}
        """Task id -> reply, until a step has used it."""
        self._logged: set[tuple[str, str]] = set()
        """(client, reason) of failures in the log, so that repeated failures are logged once."""
        self._latencies: deque[float] = deque(maxlen=64)
        """Overhead of the last replies: real seconds from sending to reading, minus the client's compute time."""
        self.events = Events()
        """For the clock `reported`: the virtual times at which replies count as received."""
        self._held: dict[int, Outcome] = {}
        """Task id -> outcome of these replies."""
        self._sent: dict[int, float] = {}
        """Task id -> real time of sending, for tasks without a reply."""
        self._began = monotonic() - coordinator.now

    @property
    def now(self) -> float:
        """Seconds since the first start of training, by the chosen clock."""
        return self._coordinator.now if self.reported else max(self._coordinator.now, monotonic() - self._began)

    @property
    def latency(self) -> float:
        """Smallest recent overhead of the framework per task; shorter deadlines cannot be met by any client."""
        return 0.0 if self.reported else max(0.0, min(self._latencies, default=0.0))

    def send(self, transport: Transport, tasks: Sequence[Task]) -> None:
        """Send tasks and note the time."""
        if tasks:
            now = monotonic()
            self._sent |= {task.id: now for task in tasks}
            transport.send(tasks)

    def take_in(self, transport: Transport) -> None:
        """Read new replies, and pass the ones that count as received by now to the coordinator."""
        for number, came in transport.collect():
            self._sort(number, came)
        for task, _ in self.events.come(self._coordinator, self._coordinator.now):
            self._hand_over(task, self._held.pop(task.id))

    def pass_time(self, transport: Transport) -> None:
        """Wait for a reply or the next deadline, and fail tasks without a reply for too long.

        On the clock `reported`, once all replies are read, advance the virtual time to the next event instead.
        """
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
        """Delete models and replies that no task needs."""
        flight = self._coordinator.flight
        wanted = {task.id for task in flight.mine()[1]} | set(flight.tasks)
        self.replies = {number: reply for number, reply in self.replies.items() if number in wanted}
        self._held = {number: outcome for number, outcome in self._held.items() if number in wanted}
        versions = flight.versions | {self._coordinator.step}
        self.models = {version: model for version, model in self.models.items() if version in versions}

    @property
    def coming(self) -> dict[int, Outcome]:
        """Task id -> measurement that was read but not yet passed on (clock `reported`); saved with the state."""
        flight = self._coordinator.flight.tasks
        return {n: held for n, held in self._held.items() if n in flight and flight[n].kind == "measure"}

    def expect(self, coming: Mapping[int, Outcome]) -> None:
        """Restore the measurements in `coming` that an earlier server saved."""
        began = {number: self._coordinator.flight.tasks[number].began for number in coming}
        self._held |= coming
        self.events.add(Event(began[number] + held.seconds, number, held.seconds) for number, held in coming.items())

    def drop(self, task: Task, why: str) -> None:
        """Delete a client's reply, and log the reason once."""
        client = str(task.client)
        self.replies.pop(task.id, None)
        if (client, why) not in self._logged:
            self._logged = {*self._logged, (client, why)} if len(self._logged) < MOST_TOLD else {(client, why)}
            self._log.warning("fedpace: %r failed in this round: %s", client, why)

    def _sort(self, number: int, came: Callable[[], Raw] | str) -> None:
        """Process one reply, or the reason why there is none."""
        since = self._sent.pop(number, monotonic())
        task = self._coordinator.flight.tasks.get(number)
        if task is None:
            return  # the task is no longer in flight
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
        if math.isnan(seconds):  # probes take no time unless clients report it
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
