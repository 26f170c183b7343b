"""Flower waits for every reply or for one timeout; a cohort may have a deadline, or be content with some of it."""

from __future__ import annotations

import inspect
import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import Any, cast

from flwr.app import Message
from flwr.serverapp import Grid

log = logging.getLogger("flwr")

POLL = 0.5
"""Seconds between looks for replies while a deadline runs."""


class PatientGrid:
    """A Grid whose `send_and_receive` ends at the deadline of the cohort, or when enough have answered.

    Everything else is the grid's own. Replies that come later are fetched by `late` where enough had answered, and
    never where the deadline had come; Flower drops those at the end of their time to live.

    Args:
        grid: Flower's.
        patience: called with the messages about to be sent; returns (deadline in seconds, replies that are enough),
            where infinity and 0 mean all of them.
    """

    def __init__(self, grid: Grid, patience: Callable[[list[Message]], tuple[float, int]]) -> None:
        self._grid = grid
        self._patience = patience
        self._left: set[str] = set()

    def late(self) -> list[Message]:
        """Return replies that have come since a cohort was content with those before them."""
        came = list(self._grid.pull_messages(message_ids=self._left)) if self._left else []
        self._left -= {reply.metadata.reply_to_message_id for reply in came}
        return came

    def __getattr__(self, name: str) -> Any:
        """Be the grid in everything else."""
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send, and wait as long as the cohort is worth waiting for."""
        sent = list(messages)
        deadline, enough = self._patience(sent)
        limit = min(deadline, math.inf if timeout is None else timeout)
        if enough == 0 or not self._can_poll():
            return self._grid.send_and_receive(sent, timeout=None if math.isinf(limit) else limit)
        return self._poll(sent, limit, enough)

    def _can_poll(self) -> bool:
        """Whether replies can be fetched one by one: Flower renamed the argument in 1.43."""
        able = "message_ids" in inspect.signature(self._grid.pull_messages).parameters
        if not able:
            log.warning(
                "fedpace: this version of Flower cannot stop when enough clients have answered: all are awaited"
            )
        return able

    def _poll(self, messages: list[Message], limit: float, enough: int) -> list[Message]:
        waiting = {identifier for identifier in self._grid.push_messages(messages) if identifier}
        replies: list[Message] = []
        end = time.monotonic() + limit
        while waiting:
            came = list(self._grid.pull_messages(message_ids=waiting))
            replies.extend(came)
            waiting -= {reply.metadata.reply_to_message_id for reply in came}
            if sum(not reply.has_error() for reply in replies) >= enough or time.monotonic() >= end:
                break
            time.sleep(min(POLL, max(0.0, end - time.monotonic())))
        self._left = waiting
        return replies


def patient(grid: Grid, patience: Callable[[list[Message]], tuple[float, int]]) -> Grid:
    """Return `grid` with patience, as Flower's type."""
    return cast(Grid, PatientGrid(grid, patience))
