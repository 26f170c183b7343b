"""From a reply to an outcome: sketch the update, check the moment against the others', and say what a scheme lacks."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np

from fedpace.core.checks import FloatArray
from fedpace.core.coordinator import Coordinator
from fedpace.core.errors import InputError
from fedpace.core.tasks import Task
from fedpace.core.types import Need, Outcome
from fedpace.hosting.replies import Raw, Reply, parse
from fedpace.hosting.sketch import Arrays, UpdateSketch


class Reader:
    """Reads replies to tasks.

    Args:
        coordinator: whose tasks they are.
        remedies: what a client must do about something that the scheme needs and that it does not send.
        log: where warnings go.
        loss_key: metric with the client's loss; empty = the usual ones.
    """

    def __init__(
        self, coordinator: Coordinator, remedies: Mapping[Need, str], log: logging.Logger, loss_key: str
    ) -> None:
        self._scheme, self._needs = coordinator.policy.name, coordinator.policy.needs
        self._remedies, self._log, self._loss_key = remedies, log, loss_key
        moments = coordinator.ledger.moments
        self._known: set[Any] = set(coordinator.ledger.ids_of(np.flatnonzero(moments.known)))
        """Whose moment came: one that is not due is not missed."""
        self._widths = Majority(dict.fromkeys(self._known, moments.width or 0))
        self._warned: set[tuple[Any, Need]] = set()
        self.outvoted: Callable[[], None] = lambda: None
        """Called when most clients report moments of another width than those that were used."""
        self.sketch: UpdateSketch | None = None

    def __call__(self, task: Task, unpack: Callable[[], Raw], sent: Arrays) -> tuple[Reply, Outcome]:
        """Return a reply and what it says, without the seconds; one that cannot be used is an InputError."""
        reply = self._parsed(task, unpack, sent)
        if task.kind == "probe":
            return reply, self._probed(task, reply, sent)
        moment = self._moment(task, reply)
        if math.isnan(reply.loss):
            self.lacks(task.client, Need.LOSS)
        update = None
        if Need.UPDATE in task.facts and self.sketch is not None and reply.model is not None:
            update = self.sketch(reply.model, sent)
        return reply, Outcome(task.client, 0.0, True, reply.loss, reply.samples, moment, update)

    def forget(self, clients: Collection[Any]) -> None:
        """Forget what clients said that are gone."""
        self._widths.forget(clients)
        self._known.difference_update(clients)
        self._warned = {(client, need) for client, need in self._warned if client not in clients}

    def lacks(self, client: Any, need: Need) -> None:
        """Warn once per client and fact that is needed: until it is sent, the client can only be met as a newcomer."""
        if need in self._needs and (client, need) not in self._warned:
            self._warned.add((client, need))
            remedy = self._remedies.get(need, "see the documentation")
            self._log.warning("fedpace: %s needs %s, %r sent none: %s", self._scheme, need, client, remedy)

    def _parsed(self, task: Task, unpack: Callable[[], Raw], sent: Arrays) -> Reply:
        asks_loss = task.kind == "probe" and task.probe == "loss"
        found = parse(unpack, None if asks_loss else sent, loss_key=self._loss_key)
        if isinstance(found, str) and task.kind == "probe" and not asks_loss:
            found = parse(unpack)  # who answers with a sketch sends no model
        if isinstance(found, str):
            raise InputError(found)
        return found

    def _probed(self, task: Task, reply: Reply, sent: Arrays) -> Outcome:
        if task.probe == "loss":
            if math.isnan(reply.loss):
                raise InputError(
                    "it was asked for a loss, and told none: put `loss` into the metrics of its evaluation"
                )
            return Outcome(task.client, 0.0, loss=reply.loss)
        step = reply.note.update
        if self.sketch is not None and step is None and reply.model is not None:
            step = self.sketch(reply.model, sent)
        if step is None or self.sketch is None or step.size != self.sketch.width:
            raise InputError("it was asked for the sketch of a step, and sent neither one that fits nor a model")
        return Outcome(task.client, 0.0, update=step)

    def _moment(self, task: Task, reply: Reply) -> FloatArray | None:
        moment = reply.note.moment
        if Need.MOMENT not in task.facts:
            return None
        if moment is None:
            if task.client not in self._known:
                self.lacks(task.client, Need.MOMENT)
            return None
        before, width = self._widths.most, self._widths.vote(task.client, moment.shape[1])
        if width != before and before is not None:
            self._known.clear()
            self.outvoted()
        if width != moment.shape[1]:
            self._log.warning(
                "fedpace: the moment of %r has %d columns, those of most clients have %d: it is not used",
                task.client,
                moment.shape[1],
                width,
            )
            return None
        self._known.add(task.client)
        return moment


class Majority:
    """The width that most clients report; while none has more votes, the one that was first.

    A client has one vote, its last: one that reports a wrong width first must not lock the others out.
    """

    def __init__(self, votes: Mapping[Any, int]) -> None:
        self._votes = dict(votes)
        self.most: int | None = None
        self._count()

    def vote(self, client: Any, width: int) -> int:
        """Take in what a client reports, and return what most do."""
        self._votes[client] = width
        return self._count()

    def forget(self, clients: Iterable[Any]) -> None:
        """Take votes back."""
        for client in clients:
            self._votes.pop(client, None)

    def _count(self) -> int:
        counts = Counter(self._votes.values())
        if counts and counts.most_common(1)[0][1] > counts[self.most or 0]:
            self.most = counts.most_common(1)[0][0]
        return self.most or 0
