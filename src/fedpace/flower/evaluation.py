"""Evaluation on clients: which replies a strategy can average, and evaluation by a sample of nodes between tasks."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedpace.flower.grid import pull, push
from fedpace.hosting.replies import short

log = logging.getLogger("flwr")

LEAST_EVERY, MOST_EVERY = 5.0, 60.0
"""Least and most seconds between evaluations by nodes, if the caller gives none."""
SHARE = 0.1
"""Then the pause is at least as long as lets a node of the sample evaluate for a tenth of its time, and a tenth of the
time that has passed: curves of short runs need more points than one per minute."""


def metrics_of(message: Message) -> dict[str, Any]:
    """Return the metrics in a message; empty if it has none."""
    return dict(next(iter(message.content.metric_records.values()), MetricRecord()).items())


def common_metrics(tables: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep the metrics that all tables have in the same type: otherwise Flower's strategies reject the whole round."""
    kinds = [{(key, _kind(value)) for key, value in table.items()} for table in tables]
    shared = {key for key, kind in set.intersection(*kinds) if kind >= 0}
    return [{key: value for key, value in table.items() if key in shared} for table in tables]


def _kind(value: Any) -> int:
    """Return 0 for a finite number, the length of a list of finite numbers, and -1 for anything else."""
    numbers = value if isinstance(value, list) else [value]
    if not all(isinstance(number, int | float) and np.isfinite(number) for number in numbers):
        return -1
    return len(value) if isinstance(value, list) else 0


def usable_evaluations(replies: Iterable[Message], *, weight_key: str) -> list[Message]:
    """Return the evaluation replies that a strategy can average.

    Replies with an error or without a positive weight are left out, and only metrics that all others share are kept.
    """
    usable: list[tuple[Message, dict[str, Any]]] = []
    for reply in replies:
        found = {} if reply.has_error() else metrics_of(reply)
        weight = found.get(weight_key)
        if reply.has_error():
            why = str(reply.error.reason or "an error")
        elif isinstance(weight, int | float) and 0 < weight < math.inf:
            usable.append((reply, found))
            continue
        else:
            why = f"its {weight_key} should be a number above 0, but {weight!r} came"
        log.warning("fedpace: the evaluation of node %d is left out: %s", reply.metadata.src_node_id, short(why))
    shown = common_metrics([found for _, found in usable]) if usable else []
    for (reply, _), metrics in zip(usable, shown, strict=True):
        for key in list(reply.content.metric_records):
            del reply.content[key]
        reply.content["metrics"] = MetricRecord(metrics)
    return [reply for reply, _ in usable]


class NodeEvaluation:
    """Asks a random sample of nodes to evaluate the current model, each of them when it is free.

    A node that evaluates gets no task meanwhile: that is the cost. Nodes are drawn among all, not among the free ones,
    because fast nodes are free more often and may hold other data than slow nodes.

    Args:
        size: number of nodes that evaluate together; 0 = none.
        every: least seconds from the start of one evaluation to the start of the next. None = 5 to 60: a tenth of the
            time that has passed, and ten times as long as nodes take to evaluate.
        timeout: seconds after which a node without a reply is left out.
        config: sent with the model.
        weight_key, array_key, config_key: names of the records in messages.
    """

    def __init__(
        self,
        size: int,
        every: float | None,
        timeout: float,
        config: ConfigRecord,
        *,
        weight_key: str,
        array_key: str,
        config_key: str,
    ) -> None:
        self.size, self._every, self._timeout, self._config = size, every, timeout, config
        self._weight_key, self._array_key, self._config_key = weight_key, array_key, config_key
        self._began = -math.inf
        self._took: list[float] = []
        """Seconds from asking a node of the last sample to its reply."""
        self._wanted: set[str] = set()
        """Nodes of the sample that were not asked yet."""
        self._asked: dict[str, tuple[str, float]] = {}
        """Message id -> node that was asked, and when."""
        self._replies: list[Message] = []
        self.step = 0
        """Step of the oldest model that was evaluated in the current sample."""

    @property
    def busy(self) -> set[str]:
        """Names of the nodes that evaluate now."""
        return {name for name, _ in self._asked.values()}

    @property
    def pending(self) -> bool:
        """Whether nodes of the sample have still to answer."""
        return bool(self._wanted or self._asked)

    def _pause(self, now: float) -> float:
        if self._every is not None:
            return self._every
        took = float(np.mean(self._took)) if self._took else 0.0
        return min(MOST_EVERY, max(LEAST_EVERY, SHARE * now, took / SHARE))

    def drop(self) -> None:
        """Give up the sample that is asked now."""
        self._wanted, self._asked = set(), {}
        self._began = -math.inf

    def update(
        self,
        grid: Grid,
        nodes: Mapping[str, int],
        free: Callable[[str], bool],
        arrays: ArrayRecord,
        step: int,
        now: float,
        rng: np.random.Generator,
    ) -> dict[str, float] | None:
        """Ask nodes and collect replies; return the mean metrics when the whole sample has answered, else None.

        Args:
            grid: Flower's Grid.
            nodes: name -> node id of the connected nodes.
            free: whether a node has no task.
            arrays: the current model.
            step: number of steps behind it.
            now: seconds on the server's clock.
            rng: draws the sample.
        """
        if not self.pending:
            if now < self._began + self._pause(now) or not nodes:
                return None
            names = sorted(nodes)
            drawn = rng.choice(len(names), size=min(self.size, len(names)), replace=False)
            self._wanted, self._began, self.step, self._replies = {names[i] for i in drawn}, now, step, []
            self._took = []
        self._wanted &= nodes.keys()
        if asked := sorted(name for name in self._wanted if free(name)):
            config = ConfigRecord({**self._config, "server-round": step})
            content = RecordDict({self._array_key: arrays, self._config_key: config})
            made = [Message(content, dst_node_id=nodes[n], message_type=MessageType.EVALUATE) for n in asked]
            began = time.monotonic()
            self._asked |= {i: (n, began) for i, n in zip(push(grid, made), asked, strict=True) if i}
            self._wanted -= set(asked)
        for reply in pull(grid, self._asked) if self._asked else ():
            if (found := self._asked.pop(reply.metadata.reply_to_message_id, None)) is not None:
                self._took.append(time.monotonic() - found[1])
                self._replies.append(reply)
        late = time.monotonic() - self._timeout
        self._asked = {i: (name, began) for i, (name, began) in self._asked.items() if began > late}
        if self.pending:
            return None
        replies, self._replies = self._replies, []
        return self._mean(replies)

    def _mean(self, replies: list[Message]) -> dict[str, float] | None:
        """Return the means of the numbers in the replies, weighted by the number of samples."""
        tables = [metrics_of(reply) for reply in usable_evaluations(replies, weight_key=self._weight_key)]
        if not tables:
            return None
        weights = [float(table[self._weight_key]) for table in tables]
        names = [key for key, value in tables[0].items() if key != self._weight_key and not isinstance(value, list)]
        return {key: float(np.average([table[key] for table in tables], weights=weights)) for key in names}
