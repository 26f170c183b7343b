"""Version checks and calls of Flower's Grid; all of fedpace's Grid calls go through this module.

tests/flower/test_versions.py tests several versions. If a version lacks something, the server says so at its start.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fedpace._base.errors import InputError, MissingExtraError

if TYPE_CHECKING:  # older versions have neither, and must get a clear error instead of an ImportError
    from flwr.app import Message
    from flwr.serverapp import Grid

log = logging.getLogger("flwr")

OLDEST, NEWEST = (1, 21), (1, 42)
"""The first version with the Message API of `flwr.serverapp.strategy`, and the last tested version."""
CALLS = ("get_node_ids", "push_messages", "pull_messages")
"""Methods of the Grid that fedpace uses."""


def installed() -> tuple[int, int]:
    """Return the installed version of Flower, without its patch level."""
    first, second = re.findall(r"\d+", version("flwr"))[:2]
    return int(first), int(second)


def check_installed() -> None:
    """Raise if the installed Flower is too old to import from."""
    if installed() < OLDEST:
        raise MissingExtraError(
            f"fedpace on Flower ({version('flwr')} is here)", "flower", f"flwr>={OLDEST[0]}.{OLDEST[1]}"
        )


def check(grid: Grid) -> None:
    """Raise if fedpace cannot work with the installed Flower; log a warning if the version was not tested."""
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
    """Return the ids of the connected nodes."""
    return list(grid.get_node_ids())


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


check_installed()
