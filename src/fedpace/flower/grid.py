"""Flower's Grid: version checks, the calls that fedpace uses, and `GridTransport`, which sends tasks over it.

Each task is built from the train message that the server has for the node. A probe for a loss is an evaluate message:
the loss of the current model on the client's evaluation data. A probe for a gradient is a train message, which
`report_mod` answers with a sketch. A client without the mod trains and sends its model, and the server computes the
sketch from it, which is slower but gives the same.

tests/flower/test_versions.py tests several versions of Flower. If a version lacks something, the server says so at its
start.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedpace._base.errors import InputError
from fedpace.core.tasks import Task
from fedpace.core.types import Need
from fedpace.flower.wire import (
    ASK_GRADIENT,
    ASK_MOMENT,
    ASK_TARGETS,
    LOCAL_STEPS,
    PARCEL,
    RECORD,
    SEALED,
    SKETCH_SEED,
    SKETCH_WIDTH,
    WORK,
    arrays_of,
)
from fedpace.hosting.replies import Raw, steps_of_work

log = logging.getLogger("flwr")

OLDEST, NEWEST = (1, 21), (1, 42)
"""The first version with the Message API of `flwr.serverapp.strategy`, and the last tested version."""
CALLS = ("get_node_ids", "push_messages", "pull_messages")
"""Methods of the Grid that fedpace uses."""


def check(grid: Grid) -> None:
    """Raise if fedpace cannot work with the installed Flower; log a warning if the version was not tested."""
    found = version("flwr")
    missing = [call for call in CALLS if not callable(getattr(grid, call, None))]
    if missing:
        raise InputError(
            f"fedpace works with Flower {'.'.join(map(str, OLDEST))} and later, but {found} is installed, which has no "
            f"{', '.join(missing)}: install another version"
        )
    if tuple(int(part) for part in re.findall(r"\d+", found)[:2]) > NEWEST:
        tried = ".".join(map(str, NEWEST))
        log.warning("fedpace: Flower %s is newer than %s, the last that fedpace was tried with", found, tried)


def connected_nodes(grid: Grid) -> list[int]:
    """Return the ids of the connected nodes."""
    return list(grid.get_node_ids())


def registered_nodes(grid: Grid) -> dict[int, tuple[str, str]]:
    """Return node id -> (name, location) of the nodes that were registered with a name (`flwr supernode register`).

    Versions of Flower without `Grid.get_nodes` know no such names.
    """
    found: Any = grid.get_nodes() if hasattr(grid, "get_nodes") else ()
    named = [(info.node_id, getattr(info, "name", ""), getattr(info, "location", "")) for info in found]
    return {int(node): (str(name), str(location)) for node, name, location in named if name}


def push(grid: Grid, messages: Sequence[Message]) -> list[str]:
    """Send messages; return the id of each, or an empty string if its node has disconnected."""
    made = [identifier or "" for identifier in grid.push_messages(messages)]
    if len(made) == len(messages):
        return made
    # Ray's simulation leaves out refused messages, and a too large payload makes the list empty.
    taken = set(made)
    return [own if (own := str(message.metadata.message_id)) in taken else "" for message in messages]


def pull(grid: Grid, identifiers: Iterable[str]) -> list[Any]:
    """Return the replies that have arrived, each once."""
    # By position: the argument's name differs between versions.
    return list(grid.pull_messages(list(identifiers)))


class GridTransport:
    """Tasks in flight, by the ids of their Flower messages.

    Args:
        weight_key: metric with the client's number of samples.
        sketch: width and seed of the sketches of steps.
        work: whether to send the work of each training task.
        local_steps: usual number of local steps of every client; 0 = clients know it themselves.
        parcel: returns what a task's client needs to seal its update; None = clients send their models.
    """

    def __init__(
        self,
        weight_key: str,
        sketch: tuple[int, int],
        *,
        work: bool = False,
        local_steps: int = 0,
        parcel: Callable[[Task], bytes] | None = None,
    ) -> None:
        self._weight_key, self._work, self._local_steps, self._parcel = weight_key, work, local_steps, parcel
        self._projection = {SKETCH_WIDTH: sketch[0], SKETCH_SEED: str(sketch[1])}
        self._out: dict[str, int] = {}
        self._refused: list[int] = []
        self.failed = False
        """Whether a task has failed since this flag was last reset; its node may have disconnected."""
        self._grid: Any = None
        self._offer: Callable[[str], Message | None] = lambda client: None

    def on(self, grid: Grid, offer: Callable[[str], Message | None]) -> GridTransport:
        """Use `grid`; `offer` returns the message with the current model for a client, None if it has disconnected."""
        self._grid, self._offer = grid, offer
        return self

    def send(self, tasks: Sequence[Task]) -> None:
        """Push one message per task."""
        made = [(task, offered) for task in tasks if (offered := self._offer(str(task.client))) is not None]
        sent = {task.id for task, _ in made}
        self._refused += [task.id for task in tasks if task.id not in sent]
        identifiers = push(self._grid, [self._message(task, offered) for task, offered in made]) if made else []
        for (task, _), identifier in zip(made, identifiers, strict=True):
            if identifier:
                self._out[identifier] = task.id
            else:
                self._refused.append(task.id)

    def collect(self) -> Iterator[tuple[int, Callable[[], Raw] | str]]:
        """Pull replies; yield (task id, function that unpacks the reply), or (task id, reason of the failure)."""
        refused, self._refused = self._refused, []
        self.failed |= bool(refused)
        for number in refused:
            yield number, "its node is gone"
        for reply in pull(self._grid, self._out) if self._out else ():
            if (identifier := reply.metadata.reply_to_message_id) in self._out:
                number = self._out.pop(identifier)
                self.failed |= reply.has_error()
                yield number, reply.error.reason or "an error" if reply.has_error() else partial(self._unpack, reply)

    def wait(self, seconds: float) -> None:
        """Sleep: Flower does not signal when a reply arrives, so the server polls."""
        time.sleep(seconds)

    def _message(self, task: Task, offered: Message) -> Message:
        evaluates = task.kind == "probe" and task.probe == "loss"
        questions: dict[str, Any] = {}
        if task.kind == "probe" and not evaluates:
            questions = {ASK_GRADIENT: True, **self._projection}
        elif task.kind != "probe" and Need.MOMENT in task.facts:
            questions = {ASK_MOMENT: True, ASK_TARGETS: Need.TARGETS in task.facts}
        if self._work and task.kind != "probe":
            questions[WORK] = float(task.work)
            if self._local_steps:
                questions[LOCAL_STEPS] = steps_of_work(task.work, self._local_steps)
        if self._parcel is not None and task.kind != "probe":
            questions[PARCEL] = self._parcel(task)
        # Copy the content, because all messages of a round share it.
        content = RecordDict(dict(offered.content.items()))
        for key, config in offered.content.config_records.items():
            content[key] = ConfigRecord({**config, **questions})
        return Message(
            content,
            dst_node_id=offered.metadata.dst_node_id,
            message_type=MessageType.EVALUATE if evaluates else offered.metadata.message_type,
            group_id=offered.metadata.group_id or None,
            ttl=offered.metadata.ttl,
        )

    def _unpack(self, reply: Message) -> Raw:
        metrics: Any = next(iter(reply.content.metric_records.values()), {})
        return Raw(
            note=reply.content.config_records.get(RECORD, {}),
            metrics=metrics,
            samples=metrics.get(self._weight_key),
            steps=metrics.get(LOCAL_STEPS),
            model=arrays_of(reply) if reply.content.array_records else None,
            carrier=reply,
            sealed=reply.content.config_records.get(SEALED, ConfigRecord()).get("update"),
        )
