"""What differs from one version of Flower to the next: all that fedpace asks of its Grid goes through here.

Tried for real: see tests/flower/test_versions.py. What a version lacks is said when a server starts, not in mid-run.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fedpace._base.errors import InputError, MissingExtraError

if TYPE_CHECKING:  # older versions have neither, and are to hear so in a sentence
    from flwr.app import Message
    from flwr.serverapp import Grid

log = logging.getLogger("flwr")

OLDEST, NEWEST = (1, 21), (1, 42)
"""The first with the Message API of `flwr.serverapp.strategy`, and the last that was tried."""
CALLS = ("get_node_ids", "push_messages", "pull_messages")
"""Of the Grid."""


def installed() -> tuple[int, int]:
    """Return the installed version of Flower, without its patch level."""
    first, second = re.findall(r"\d+", version("flwr"))[:2]
    return int(first), int(second)


def check_installed() -> None:
    """Refuse a Flower that is too old to be imported from."""
    if installed() < OLDEST:
        raise MissingExtraError(
            f"fedpace on Flower ({version('flwr')} is here)", "flower", f"flwr>={OLDEST[0]}.{OLDEST[1]}"
        )


def check(grid: Grid) -> None:
    """Refuse a Flower that cannot be worked with, and say so of one that nobody tried."""
    found = version("flwr")
    missing = [call for call in CALLS if not callable(getattr(grid, call, None))]
    if missing:
        raise InputError(
            f"fedpace works with Flower {'.'.join(map(str, OLDEST))} and later, but {found} is installed, which has no "
            f"{', '.join(missing)}: install another version"
        )
    if installed() > NEWEST:
        tried = ".".join(map(str, NEWEST))
        log.warning("fedpace: Flower %s is newer than %s, the last that fedpace was tried with", found, tried)


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


check_installed()
