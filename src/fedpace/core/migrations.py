"""Migrations of saved coordinators from earlier formats: one function per format, each to the next format."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

from fedpace._base.errors import InputError

Index = MutableMapping[str, Any]
"""Content of `session.json`."""
Arrays = MutableMapping[str, Any]
"""Arrays of the npz file."""


def _from_3(index: Index, arrays: Arrays) -> None:
    """Move the values of `pace` from the facts to its accumulators; delete them for other schemes."""
    its_own = {"pace": ("recent_weight", "lateness")}.get(index["selector"]["name"], ())
    for name in ("recent_weight", "lateness"):
        values = arrays.pop(f"ledger/{name}", None)
        if name in its_own and values is not None:
            arrays[f"ledger/accumulated/{name}"] = values


def _from_4(index: Index, arrays: Arrays) -> None:
    """Rename `enough` to `quorum` and `awaited` to `late`."""
    pending = index["shell"].get("pending")
    for table, before, now in (
        (index["progress"], "enough", "quorum"),
        (pending, "enough", "quorum"),
        *((outcome, "awaited", "late") for outcome in index["flight"]["outcomes"]),
    ):
        if table is not None:
            table[now] = table.pop(before)


def _from_5(index: Index, arrays: Arrays) -> None:
    """Delete `begun` from the state of `pace-async`: its row numbers became wrong when clients left."""
    if isinstance(index["state"], dict):
        index["state"].pop("begun", None)


MIGRATIONS: dict[int, Callable[[Index, Arrays], None]] = {3: _from_3, 4: _from_4, 5: _from_5}


FORMER_NAMES = {"stretch": "step_factor", "ahead": "momentum"}
"""Old name -> current name of fields in saved server-rule states and rounds."""

LATER_FIELDS = frozenset({"move", "move_before", "bends", "ways", "reference_squares", "reference_spreads"})
"""Fields of server-rule states that older saved states lack; they start with their initial values."""


FORMER_FIELDS = frozenset({"moved"})
"""Fields of older saved states that are ignored, because other fields determine them."""


def current_name(name: str) -> str:
    """Return the current name of a saved field."""
    return FORMER_NAMES.get(name, name)


def check_format(index: Any, wanted: int, where: str) -> None:
    """Raise InputError unless the saved format is `wanted` or can be migrated."""
    found = index.get("format") if isinstance(index, dict) else None
    if not isinstance(found, int) or (found != wanted and found not in MIGRATIONS):
        earlier = f": it is of format {found}, which this fedpace cannot go on with" if found else ""
        raise InputError(f"{where} is not a session of format {wanted}{earlier}")


def migrate(index: Index, arrays: Arrays, wanted: int) -> None:
    """Convert the saved data to format `wanted`, in place."""
    while index["format"] != wanted:
        MIGRATIONS[index["format"]](index, arrays)
        index["format"] += 1
