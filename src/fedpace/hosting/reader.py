"""From replies to outcomes: sketch updates, drop moments that do not fit, and warn of missing facts."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from fedpace._base.errors import InputError
from fedpace.core.coordinator import Coordinator
from fedpace.core.tasks import Task
from fedpace.core.types import Need, Outcome
from fedpace.core.widths import holders, in_use
from fedpace.hosting.replies import Raw, Reply, parse
from fedpace.hosting.sketch import Arrays, UpdateSketch


class Reader:
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

    def __call__(self, task: Task, unpack: Callable[[], Raw], sent: Arrays) -> tuple[Reply, Outcome]:
        """Return the parsed reply and its outcome, with seconds still 0; raise InputError if it cannot be used."""
        reply = self._parsed(task, unpack, sent)
        if task.kind == "probe":
            return reply, self._probed(task, reply, sent)
        moment = reply.note.moment if Need.MOMENT in task.facts else None
        if Need.MOMENT in task.facts and moment is None and task.client not in holders(self._coordinator, "moment"):
            self.lacks(task.client, Need.MOMENT)  # no warning if it sent one before: its privacy budget is spent
        if math.isnan(reply.loss):
            self.lacks(task.client, Need.LOSS)
        update = None
        if Need.UPDATE in task.facts and reply.model is not None:
            update = self.sketch(reply.model, sent)
        return reply, Outcome(task.client, 0.0, True, reply.loss, reply.samples, moment, update)

    def fitting(self, outcome: Outcome) -> Outcome:
        """Return the outcome, without its moment if that has another width than the majority's moments."""
        if outcome.moment is None:
            return outcome
        self._coordinator.widths.vote(self._coordinator, [outcome])
        width, came = in_use(self._coordinator, "moment"), outcome.moment.shape[1]
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

    def lacks(self, client: Any, need: Need) -> None:
        """Warn, once per client and fact, that the scheme needs a fact that the client does not send."""
        policy = self._coordinator.policy
        if need in policy.needs and (client, need) not in self._warned:
            self._warned.add((client, need))
            remedy = self._remedies.get(need, "see the documentation")
            self._log.warning("fedpace: %s needs %s, %r sent none: %s", policy.name, need, client, remedy)

    def _parsed(self, task: Task, unpack: Callable[[], Raw], sent: Arrays) -> Reply:
        asks_loss = task.kind == "probe" and task.probe == "loss"
        found = parse(unpack, None if asks_loss else sent, loss_key=self._loss_key)
        if isinstance(found, str) and task.kind == "probe" and not asks_loss:
            found = parse(unpack)  # a client that sends a sketch sends no model
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
        if step is None and reply.model is not None:
            step = self.sketch(reply.model, sent)
        if step is None or step.size != self.sketch.width:
            raise InputError("it was asked for the sketch of a step, and sent neither one that fits nor a model")
        return Outcome(task.client, 0.0, update=step)
