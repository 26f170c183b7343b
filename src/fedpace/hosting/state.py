"""The saved state of a live server: the coordinator, the shared model and further values of the host, without pickle.

Step N is written to `session-N/` and `model-N.npz`. Then `paced.json`, which refers to both, is replaced atomically, so
a crash always leaves a coordinator and a model of the same step. `paced.json` also holds the record of the round: if a
crash prevented the line in `rounds.jsonl`, the restarted server adds it.
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
"""Prefix of the names of arrays in `Saved.coming`."""


@dataclass(frozen=True, eq=False)
class Saved:
    """The state after one step."""

    coordinator: Coordinator
    model: Arrays
    entry: Round
    facts: dict[str, Any] = field(default_factory=dict)
    """Further JSON values of the host."""
    own: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Further arrays of the host."""
    coming: dict[int, Outcome] = field(default_factory=dict)
    """Task id -> measurement that was read, but does not count yet on the clock `reported`."""
    digests: str = ""
    """Digests of the rounds recorded before `entry` (`RunWriter.digests`); empty in older states."""


def save(folder: Path, saved: Saved) -> None:
    """Write the state, then delete the previous one; raise StorageError if writing fails."""
    number = saved.coordinator.step
    session, model = f"session-{number}", f"model-{number}.npz"
    # Use numbers, because an npz cannot hold every name that a model may use.
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
    """Return the last saved state; None if there is none."""
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
