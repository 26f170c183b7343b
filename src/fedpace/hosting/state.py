"""A server's memory on disk: the coordinator, the shared model and whatever else the host keeps, never pickled.

A step is written as `session-N/` and `model-N.npz`; then `paced.json`, replaced in one go, names both. So a crash at
any instant leaves a coordinator and a model of the same step. The line of the diary is in there too: what the crash
kept from being appended to `rounds.jsonl` is appended when the server comes back.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace._base.errors import InputError
from fedpace._base.files import json_bytes, keeping, npz_bytes, read_json, read_npz, write_atomically
from fedpace.core.codec import decode, encode
from fedpace.core.coordinator import Coordinator
from fedpace.core.types import Outcome
from fedpace.hosting.sketch import Arrays
from fedpace.records.round import Round
from fedpace.records.run import parse_round, round_line

FORMAT = 2
INDEX = "paced.json"
COMING = "coming-"
"""Begins the names of arrays in reports whose seconds have not passed."""


@dataclass(frozen=True, eq=False)
class Saved:
    """The state after one step."""

    coordinator: Coordinator
    model: Arrays
    entry: Round
    facts: dict[str, Any] = field(default_factory=dict)
    """What the host remembers beside them, as JSON."""
    own: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Arrays of the host's own."""
    coming: dict[int, Outcome] = field(default_factory=dict)
    """Task -> what was measured, where time is reported and its seconds have not passed yet."""
    digests: str = ""
    """Of the rounds that were recorded before `entry` (`RunWriter.digests`); empty in older states."""


def save(folder: Path, saved: Saved) -> None:
    """Write the state, then drop the one before; what cannot be written is a StorageError."""
    number = saved.coordinator.step
    session, model = f"session-{number}", f"model-{number}.npz"
    # Numbered, since npz cannot hold arrays of every name that a model may use.
    tables = {f"model-{i}": np.asarray(array) for i, array in enumerate(saved.model.values())}
    tables |= {f"own-{i}": np.asarray(array) for i, array in enumerate(saved.own.values())}
    reported: dict[str, NDArray[Any]] = {}
    coming = encode(saved.coming, reported)
    tables |= {COMING + name: array for name, array in reported.items()}
    index = {
        "format": FORMAT,
        "round": number,
        "session": session,
        "model": model,
        "arrays": list(saved.model),
        "own": list(saved.own),
        "entry": round_line(saved.entry),
        "facts": saved.facts,
        "coming": coming,
        "digests": saved.digests,
    }
    with keeping(folder):
        write_atomically(folder / model, npz_bytes(tables))
        saved.coordinator.save(folder / session)
        write_atomically(folder / INDEX, json_bytes(index))
    for stale in folder.glob("session-*"):
        if stale.name != session:
            shutil.rmtree(stale, ignore_errors=True)
    for stale in folder.glob("model-*.npz"):
        if stale.name != model:
            stale.unlink(missing_ok=True)


def load(folder: Path, policy: Any) -> Saved | None:
    """Return the last state written; None where there is none yet."""
    if not (folder / INDEX).exists():
        return None
    index = read_json(folder / INDEX)
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise InputError(f"{folder / INDEX} is not a server's state of format {FORMAT}: use another folder")
    try:
        stored = read_npz(folder / Path(index["model"]).name)
        reported = {name.removeprefix(COMING): stored[name] for name in stored if name.startswith(COMING)}
        return Saved(
            coordinator=Coordinator.restore(folder / Path(index["session"]).name, policy),
            model={key: stored[f"model-{i}"] for i, key in enumerate(index["arrays"])},
            entry=parse_round(index["entry"]),
            facts=dict(index["facts"]),
            own={key: stored[f"own-{i}"] for i, key in enumerate(index["own"])},
            coming=decode(dict[int, Outcome], index.get("coming", []), reported),
            digests=str(index.get("digests", "")),
        )
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as cause:
        raise InputError(f"{folder / INDEX} is damaged: {cause!r}") from cause
