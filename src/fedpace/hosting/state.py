"""A server's memory on disk: the session, the shared model and whatever else the host keeps, never pickled.

A round is written as `session-N/` and `model-N.npz`; then `paced.json`, replaced in one step, names both. So a crash at
any instant leaves a session and a model of the same round.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace.core.errors import InputError
from fedpace.core.files import json_bytes, npz_bytes, read_json, read_npz, write_atomically
from fedpace.core.session import Session
from fedpace.core.types import Selector

FORMAT = 1
INDEX = "paced.json"
ROUNDS = "rounds.jsonl"


@dataclass(frozen=True, eq=False)
class Saved:
    """One round's state."""

    round: int
    session: Session
    model: dict[str, NDArray[Any]] | None
    facts: dict[str, Any] = field(default_factory=dict)
    """What the host remembers beside them, as JSON."""
    own: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Arrays of the host's own."""


def save(folder: Path, saved: Saved) -> None:
    """Write the state of a round, then drop the one before."""
    session, model = f"session-{saved.round}", f"model-{saved.round}.npz"
    # Numbered, since npz cannot hold arrays of every name that a model may use.
    tables = {f"model-{i}": np.asarray(array) for i, array in enumerate((saved.model or {}).values())}
    tables |= {f"own-{i}": np.asarray(array) for i, array in enumerate(saved.own.values())}
    write_atomically(folder / model, npz_bytes(tables))
    saved.session.save(folder / session)
    index = {
        "format": FORMAT,
        "round": saved.round,
        "session": session,
        "model": model,
        "arrays": None if saved.model is None else list(saved.model),
        "own": list(saved.own),
        "facts": saved.facts,
    }
    write_atomically(folder / INDEX, json_bytes(index))
    for stale in folder.glob("session-*"):
        if stale.name != session:
            shutil.rmtree(stale, ignore_errors=True)
    for stale in folder.glob("model-*.npz"):
        if stale.name != model:
            stale.unlink(missing_ok=True)


def load(folder: Path, selector: Selector[Any]) -> Saved | None:
    """Return the last state written; None where there is none yet."""
    if not (folder / INDEX).exists():
        return None
    index = read_json(folder / INDEX)
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise InputError(f"{folder / INDEX} is not a server's state of format {FORMAT}: use another folder")
    try:
        stored = read_npz(folder / Path(index["model"]).name)
        names = index["arrays"]
        return Saved(
            round=int(index["round"]),
            session=Session.restore(folder / Path(index["session"]).name, selector),
            model=None if names is None else {key: stored[f"model-{i}"] for i, key in enumerate(names)},
            facts=dict(index["facts"]),
            own={key: stored[f"own-{i}"] for i, key in enumerate(index["own"])},
        )
    except (KeyError, TypeError, AttributeError) as cause:
        raise InputError(f"{folder / INDEX} is damaged: {cause!r}") from cause


def append_round(folder: Path, entry: Mapping[str, Any]) -> None:
    """Add a line to the folder's diary of rounds."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ROUNDS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry, allow_nan=False) + "\n")
