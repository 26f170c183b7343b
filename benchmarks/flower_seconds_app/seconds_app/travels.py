"""When each message was sent, worked on and seen: the same for every contestant, whoever drives the grid."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

STAMPS = ("part", "began", "slept", "ended")


class Travels:
    """Notes what goes through a grid, whose calls are wrapped: Flower's own loop uses the same two.

    Nodes and server are on one machine, and so on one clock.
    """

    def __init__(self, grid: Grid) -> None:
        self._start = time.time()
        self._rows: dict[str, list[float | None]] = {}
        self._to: dict[str, int] = {}
        self._parts: dict[int, float] = {}
        self._push, self._pull = grid.push_messages, grid.pull_messages
        wrapped: Any = grid
        wrapped.push_messages, wrapped.pull_messages = self._pushing, self._pulling

    def table(self) -> list[list[float | None]]:
        """Return a row per message: sent, part, began, slept, ended, seen; seconds from the start.

        Who was asked for its name only has no stamps; who had not answered at the end was not seen.
        """
        for identifier, row in self._rows.items():
            row[1] = self._parts.get(self._to[identifier])
        return [[None if entry is None else round(entry, 2) for entry in row] for row in self._rows.values()]

    def _pushing(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = time.time() - self._start
        made = list(messages)
        identifiers = list(self._push(made))
        for message, identifier in zip(made, identifiers, strict=True):
            if identifier:
                self._to[identifier] = message.metadata.dst_node_id
                self._rows[identifier] = [sent, None, None, None, None, None]
        return identifiers

    def _pulling(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(self._pull(message_ids))
        seen = time.time() - self._start
        for reply in replies:
            identifier = reply.metadata.reply_to_message_id
            row = self._rows[identifier]
            row[5] = seen
            metrics: Any = {} if reply.has_error() else next(iter(reply.content.metric_records.values()), {})
            if all(stamp in metrics for stamp in STAMPS):
                part, began, slept, ended = (float(metrics[stamp]) for stamp in STAMPS)
                self._parts[self._to[identifier]] = part
                row[2:5] = began - self._start, slept, ended - self._start
        return replies
