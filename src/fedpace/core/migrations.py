"""Saved coordinators of earlier formats, made into the current one: a function per format, each to the next."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

from fedpace._base.errors import InputError

Index = MutableMapping[str, Any]
"""`session.json`."""
Arrays = MutableMapping[str, Any]
"""The tables beside it."""


def _from_3(index: Index, arrays: Arrays) -> None:
    """What one scheme alone remembers was kept for all of them, among the facts."""
    its_own = {"pace": ("recent_weight", "lateness")}.get(index["selector"]["name"], ())
    for name in ("recent_weight", "lateness"):
        values = arrays.pop(f"ledger/{name}", None)
        if name in its_own and values is not None:
            arrays[f"ledger/accumulated/{name}"] = values


def _from_4(index: Index, arrays: Arrays) -> None:
    """What is a quorum, and late, was called enough, and awaited."""
    pending = index["shell"].get("pending")
    for table, before, now in (
        (index["progress"], "enough", "quorum"),
        (pending, "enough", "quorum"),
        *((outcome, "awaited", "late") for outcome in index["flight"]["outcomes"]),
    ):
        if table is not None:
            table[now] = table.pop(before)


def _from_5(index: Index, arrays: Arrays) -> None:
    """Of whom was given the current model, pace-async kept rows in its state, which rows are moved past."""
    if isinstance(index["state"], dict):
        index["state"].pop("begun", None)


MIGRATIONS: dict[int, Callable[[Index, Arrays], None]] = {3: _from_3, 4: _from_4, 5: _from_5}


FORMER_NAMES = {"stretch": "step_factor", "ahead": "momentum"}
"""Fields of server steps' states and of rounds on disk that have another name now."""

LATER_FIELDS = frozenset({"move", "move_before", "bends", "ways", "reference_squares", "reference_spreads"})
"""Fields of server steps' states that earlier ones lack; they begin as if no step had been made."""


FORMER_FIELDS = frozenset({"moved"})
"""Fields that some of these states once had, beside what they follow from."""


def current_name(name: str) -> str:
    """Return what a field on disk is called now."""
    return FORMER_NAMES.get(name, name)


def check_format(index: Any, wanted: int, where: str) -> None:
    """Refuse what is neither of format `wanted` nor can be made so."""
    found = index.get("format") if isinstance(index, dict) else None
    if not isinstance(found, int) or (found != wanted and found not in MIGRATIONS):
        earlier = f": it is of format {found}, which this fedpace cannot go on with" if found else ""
        raise InputError(f"{where} is not a session of format {wanted}{earlier}")


def migrate(index: Index, arrays: Arrays, wanted: int) -> None:
    """Bring what was read to format `wanted`, in place."""
    while index["format"] != wanted:
        MIGRATIONS[index["format"]](index, arrays)
        index["format"] += 1
