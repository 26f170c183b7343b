"""The reply loop of a live server: it sends the coordinator's tasks, reads replies, and passes them to the coordinator.

It runs on one of two clocks:

- `server`: real time on this machine. A client's seconds run from sending the task to reading the reply. They include
  the overhead of the framework, and so do deadlines.
- `reported`: virtual time from the seconds that clients report, for delay models on one machine. The server waits for
  all replies in real time. Each reply counts as received when its reported seconds have passed, as in the simulator.

`Membership` lets connected clients join with their facts, and removes absent ones.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, Protocol

import numpy as np

from fedpace._base.checks import above, printable
from fedpace._base.errors import InputError
from fedpace.core.coordinator import Coordinator
from fedpace.core.tasks import Event, Events, Task
from fedpace.core.types import Need, Outcome
from fedpace.hosting.replies import Arrays, Note, Raw, Reply, UpdateSketch, parse, short

FORGET_SECONDS = 7 * 86_400.0
FORGET_NAMELESS_SECONDS = 600.0
"""Seconds after which an absent client without a stable name is removed: on return it has another id anyway."""


class Membership:
    """Adds and removes the clients of one coordinator.

    Args:
        coordinator: the coordinator.
        reader: also forgets clients that are removed.
        log: logger for warnings.
        forget_seconds: remove clients that were not connected for this long.
    """

    def __init__(
        self, coordinator: Coordinator, reader: ReplyReader, log: logging.Logger, forget_seconds: float = FORGET_SECONDS
    ) -> None:
        above(forget_seconds, 0, "forget_seconds")
        self._coordinator, self._reader, self._log = coordinator, reader, log
        self._patience = forget_seconds
        self._until = dict.fromkeys(map(str, coordinator.clients), monotonic() + forget_seconds)
        """Client -> time at which it is removed, unless it is seen again."""

    def update(self, present: Mapping[str, Note]) -> None:
        """Add new clients and remove clients absent for too long; `present`: client -> its note.

        Clients without a fact that they must bring when they join are not added; the log says why.
        """
        self._forget(present)
        self._settle_classes(present)
        known = set(self._coordinator.clients)
        # Sort by length and name: rows must not depend on the order of connection.
        for name in sorted(present.keys() - known, key=lambda name: (len(name), name)):
            try:
                self._join(name, present[name])
            except InputError as problem:
                self._log.warning("fedpace: %r is not used: %s", name, printable(str(problem)))

    def _join(self, name: str, note: Note) -> None:
        wanted, needs = self._coordinator.wanted, self._coordinator.policy.needs
        labels = note.labels if Need.LABELS in wanted else None
        if self._coordinator.settings.shares == "samples" and math.isnan(note.samples):
            raise InputError("it did not report its number of samples, which shares='samples' needs")
        if Need.LABELS in needs and labels is None:
            self._reader.warn_missing(name, Need.LABELS)
        samples = None if math.isnan(note.samples) else [note.samples]
        self._coordinator.join([name], samples=samples, labels=None if labels is None else [labels])

    def _forget(self, present: Mapping[str, Note]) -> None:
        """Remove clients that were absent for too long, so that reconnections do not grow the roster."""
        now = monotonic()
        nameless = min(FORGET_NAMELESS_SECONDS, self._patience)
        self._until |= {n: now + (self._patience if note.name == n else nameless) for n, note in present.items()}
        gone = {name for name, until in self._until.items() if now > until}
        self._coordinator.leave([name for name in gone if name in self._coordinator.ledger])
        self._reader.forget(gone)
        self._until = {name: until for name, until in self._until.items() if name not in gone}

    def _settle_classes(self, present: Mapping[str, Note]) -> None:
        """Delete the stored label histograms if they are outvoted by clients with another number of classes."""
        tables = self._coordinator.ledger.tables
        counts = Counter(note.labels.size for note in present.values() if note.labels is not None)
        if "labels" not in tables or not counts:
            return
        classes, votes = counts.most_common(1)[0]
        if classes != tables["labels"].shape[1] and votes > np.isfinite(tables["labels"]).all(axis=1).sum():
            self._log.warning("fedpace: most clients count %d classes: other histograms are forgotten", classes)
            del tables["labels"]


class ReplyReader:
    """Turns the replies to a coordinator's tasks into outcomes.

    Args:
        coordinator: the coordinator.
        remedies: fact -> advice for a client that does not send this fact although the scheme needs it.
        log: logger for warnings.
        loss_key: name of the metric with the client's loss; empty = try the names in `LOSS_KEYS`.
    """

    def __init__(
        self, coordinator: Coordinator, remedies: Mapping[Need, str], log: logging.Logger, loss_key: str
    ) -> None:
        self._coordinator, self._remedies, self._log, self._loss_key = coordinator, remedies, log, loss_key
        self._warned: set[tuple[Any, Need]] = set()
        self.sketch: UpdateSketch
        """Sketches updates of the shared model; set once there is a model."""
        self.sealed = False
        """Whether clients seal their updates for a trusted aggregator, instead of sending models."""

    def __call__(self, task: Task, unpack: Callable[[], Raw], sent: Arrays) -> tuple[Reply, Outcome]:
        """Return the parsed reply and its outcome, with seconds still 0; raise InputError if it cannot be used."""
        reply = self._parsed(task, unpack, sent)
        if task.kind == "probe":
            return reply, self._probed(task, reply, sent)
        moment = reply.note.moment if Need.MOMENT in task.facts else None
        if (
            Need.MOMENT in task.facts
            and moment is None
            and task.client not in self._coordinator.widths.holders("moment")
        ):
            self.warn_missing(task.client, Need.MOMENT)  # no warning if it sent one before: its privacy budget is spent
        if math.isnan(reply.loss):
            self.warn_missing(task.client, Need.LOSS)
        update = None
        if Need.UPDATE in task.facts and reply.model is not None:
            update = self.sketch(reply.model, sent)
        return reply, Outcome(task.client, 0.0, True, reply.loss, reply.samples, moment, update)

    def without_misfit(self, outcome: Outcome) -> Outcome:
        """Return the outcome, without its moment if that has another width than the majority's moments."""
        if outcome.moment is None:
            return outcome
        widths = self._coordinator.widths
        widths.vote([outcome])
        width, came = widths.in_use("moment"), outcome.moment.shape[1]
        if width is None or width == came:
            return outcome
        self._log.warning(
            "fedpace: the moment of %r has %d columns, those of most clients have %d: it is not used",
            outcome.client,
            came,
            width,
        )
        return replace(outcome, moment=None)

    def forget(self, clients: Collection[Any]) -> None:
        """Forget the warnings about clients that were removed."""
        self._warned = {(client, need) for client, need in self._warned if client not in clients}

    def warn_missing(self, client: Any, need: Need) -> None:
        """Warn, once per client and fact, that the scheme needs a fact that the client does not send."""
        policy = self._coordinator.policy
        if need in policy.needs and (client, need) not in self._warned:
            self._warned.add((client, need))
            remedy = self._remedies.get(need, "see the documentation")
            self._log.warning("fedpace: %s needs %s, %r sent none: %s", policy.name, need, client, remedy)

    def _parsed(self, task: Task, unpack: Callable[[], Raw], sent: Arrays) -> Reply:
        asks_loss = task.kind == "probe" and task.probe == "loss"
        found = parse(unpack, None if asks_loss or self.sealed else sent, loss_key=self._loss_key)
        if self.sealed and task.kind != "probe" and not isinstance(found, str) and not found.sealed:
            raise InputError("it sent no sealed update: add sealed_mod to its mods, with the keys of the aggregator")
        if isinstance(found, str) and task.kind == "probe" and not asks_loss:
            found = parse(unpack)  # a client that sends a sketch sends no model
        if isinstance(found, str):
            raise InputError(found)
        return found

    def _probed(self, task: Task, reply: Reply, sent: Arrays) -> Outcome:
        if task.probe == "loss":
            if math.isnan(reply.loss):
                raise InputError(
                    "it was asked for its loss, but sent none: put `loss` into the metrics of its evaluation"
                )
            return Outcome(task.client, 0.0, loss=reply.loss)
        step = reply.note.update
        if step is None and reply.model is not None:
            step = self.sketch(reply.model, sent)
        if step is None or step.size != self.sketch.width:
            raise InputError(
                "it was asked for the sketch of a step, but sent neither a sketch of the right size nor a model"
            )
        return Outcome(task.client, 0.0, update=step)


POLL_SECONDS = 0.5
"""Seconds between two checks for replies."""
MAX_PROBE_SECONDS = 600.0
"""Longest wait for the answer to a probe: a silent client must not stop training."""

MAX_LOGGED_FAILURES = 10_000
"""Maximum number of remembered log entries: clients with ever new failure reasons must not fill the memory."""


class Transport(Protocol):
    """Sends tasks to clients and collects their replies; each framework implements it."""

    def send(self, tasks: Sequence[Task]) -> None:
        """Send tasks to their clients, each with the current model."""

    def collect(self) -> Iterable[tuple[int, Callable[[], Raw] | str]]:
        """Return the news since the last call: task id, and a function that unpacks the reply or a failure reason."""

    def wait(self, seconds: float) -> None:
        """Return after this many seconds, or earlier when a reply arrives."""


class ReplyLoop:
    """Sends the tasks of one coordinator, and passes the replies to it.

    Args:
        coordinator: the coordinator.
        read: turns replies into outcomes.
        log: logger for warnings.
        reported: True = the clock `reported`, False = the clock `server`.
    """

    def __init__(self, coordinator: Coordinator, read: ReplyReader, log: logging.Logger, *, reported: bool) -> None:
        self._coordinator, self._read, self._log, self.reported = coordinator, read, log, reported
        self.reply_timeout = math.inf
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
        self._waiting: dict[int, Outcome] = {}
        """Task id -> outcome of a reply that was read, but does not count as received yet."""
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

    def read_replies(self, transport: Transport) -> None:
        """Read new replies, and pass the ones that count as received by now to the coordinator."""
        for number, came in transport.collect():
            self._process(number, came)
        for task, _ in self.events.come(self._coordinator, self._coordinator.now):
            self._deliver(task, self._waiting.pop(task.id))

    def wait(self, transport: Transport) -> None:
        """Wait for a reply or the next deadline, and fail tasks without a reply for too long.

        On the clock `reported`, once all replies are read, advance the virtual time to the next event instead.
        """
        flight = self._coordinator.task_table.tasks
        self._sent = {number: since for number, since in self._sent.items() if number in flight}
        if self.reported and not self._sent:
            self._coordinator.advance(self.events.next_instant(self._coordinator))
            return
        transport.wait(
            min(POLL_SECONDS, max(0.0, self._coordinator.wake_at - self.now)) if not self.reported else POLL_SECONDS
        )
        now = monotonic()
        for number, since in list(self._sent.items()):
            limit = min(self.reply_timeout, MAX_PROBE_SECONDS if flight[number].kind == "probe" else math.inf)
            if now - since >= limit:
                self._process(number, f"no reply within {limit:g} s")

    def discard_unused(self) -> None:
        """Delete models and replies that no task needs."""
        flight = self._coordinator.task_table
        wanted = {task.id for task in flight.policy_tasks()[1]} | set(flight.tasks)
        self.replies = {number: reply for number, reply in self.replies.items() if number in wanted}
        self._waiting = {number: outcome for number, outcome in self._waiting.items() if number in wanted}
        versions = flight.versions | {self._coordinator.step}
        self.models = {version: model for version, model in self.models.items() if version in versions}

    @property
    def unseen(self) -> dict[int, Outcome]:
        """Task id -> measurement that was read but not yet passed on (clock `reported`); saved with the state."""
        flight = self._coordinator.task_table.tasks
        return {n: held for n, held in self._waiting.items() if n in flight and flight[n].kind == "measure"}

    def restore_unseen(self, unseen: Mapping[int, Outcome]) -> None:
        """Restore the measurements in `unseen` that an earlier server saved."""
        began = {number: self._coordinator.task_table.tasks[number].began for number in unseen}
        self._waiting |= unseen
        self.events.add(Event(began[number] + held.seconds, number, held.seconds) for number, held in unseen.items())

    def drop(self, task: Task, why: str) -> None:
        """Delete a client's reply, and log the reason once."""
        client = str(task.client)
        self.replies.pop(task.id, None)
        if (client, why) not in self._logged:
            self._logged = (
                {*self._logged, (client, why)} if len(self._logged) < MAX_LOGGED_FAILURES else {(client, why)}
            )
            self._log.warning("fedpace: %r failed in this round: %s", client, why)

    def _process(self, number: int, came: Callable[[], Raw] | str) -> None:
        """Process one reply, or the reason why there is none."""
        since = self._sent.pop(number, monotonic())
        task = self._coordinator.task_table.tasks.get(number)
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
            self._deliver(task, replace(outcome, seconds=self.now - task.began, compute=reply.note.compute))
            return
        seconds = reply.note.seconds
        if math.isnan(seconds):  # probes take no time unless clients report it
            seconds = 0.0 if task.kind == "probe" else monotonic() - since
        self._waiting[number] = replace(outcome, seconds=seconds)
        self.events.add([Event(task.began + seconds, number, seconds)])

    def _deliver(self, task: Task, outcome: Outcome) -> None:
        try:
            self._coordinator.receive(task.id, self._read.without_misfit(outcome), self.now)
        except InputError as problem:
            self._fail(task, str(problem))

    def _fail(self, task: Task, why: str) -> None:
        why = short(why)
        self.drop(task, why)
        self._coordinator.lost(task.id, self.now, why=why)
