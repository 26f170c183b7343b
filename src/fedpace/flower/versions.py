"""What differs from one version of Flower to the next: all that fedpace asks of its Grid goes through here.

Tried for real: see tests/flower/test_versions.py. What a version lacks is said when a server starts, not in mid-run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

import flwr.serverapp
from flwr.app import Message
from flwr.serverapp import Grid

from fedpace.core.errors import InputError

OLDEST = (1, 21)
"""The first with the Message API of `flwr.serverapp.strategy`."""
CALLS = ("get_node_ids", "push_messages", "pull_messages")
"""Of the Grid."""


def check(grid: Grid) -> None:
    """Refuse a Flower that cannot be worked with."""
    found = version("flwr")
    missing = [call for call in CALLS if not callable(getattr(grid, call, None))]
    if not hasattr(flwr.serverapp, "strategy"):
        missing.append("flwr.serverapp.strategy")
    if missing:
        raise InputError(
            f"fedpace works with Flower {'.'.join(map(str, OLDEST))} and later, but {found} is installed, which has no "
            f"{', '.join(missing)}: install another version"
        )


def nodes(grid: Grid) -> list[int]:
    """Return the ids of those that are connected."""
    return list(grid.get_node_ids())


def push(grid: Grid, messages: Sequence[Message]) -> list[str]:
    """Send messages; return the id of each, empty where the SuperLink refused it: its node is gone."""
    made = [identifier or "" for identifier in grid.push_messages(messages)]
    if len(made) == len(messages):
        return made
    # Ray's simulation leaves out those that it refused, and a payload that is too large makes the list empty.
    taken = set(made)
    return [own if (own := str(message.metadata.message_id)) in taken else "" for message in messages]


def pull(grid: Grid, identifiers: Iterable[str]) -> list[Any]:
    """Return the replies that have come, each once."""
    # By position: the name of the argument is not the same in all versions.
    return list(grid.pull_messages(list(identifiers)))
