"""The server's memory on disk: the session, the shared model and the inner strategy's own arrays, never pickled.

A round is written as `session-N/` and `model-N.npz`; then `paced.json`, replaced in one step, names both. So a crash at
any instant leaves a session and a model of the same round.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Strategy
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
    arrays: ArrayRecord | None
    moment_steps: dict[str, int] = field(default_factory=dict)
    """Client -> step at which its moment came."""
    moment_width: int | None = None


def save(folder: Path, saved: Saved, inner: Strategy) -> None:
    """Write the state of a round, then drop the one before."""
    arrays = {} if saved.arrays is None else {key: array.numpy() for key, array in saved.arrays.items()}
    own, layout = _own_arrays(inner)
    names = list(arrays)
    session, model = f"session-{saved.round}", f"model-{saved.round}.npz"
    # Numbered, since npz cannot hold arrays of every name that a model may use.
    write_atomically(folder / model, npz_bytes({f"model-{i}": arrays[key] for i, key in enumerate(names)} | own))
    saved.session.save(folder / session)
    index = {
        "format": FORMAT,
        "round": saved.round,
        "session": session,
        "model": model,
        "arrays": None if saved.arrays is None else names,
        "inner": layout,
        "moment_steps": saved.moment_steps,
        "moment_width": saved.moment_width,
    }
    write_atomically(folder / INDEX, json_bytes(index))
    for stale in folder.glob("session-*"):
        if stale.name != session:
            shutil.rmtree(stale, ignore_errors=True)
    for stale in folder.glob("model-*.npz"):
        if stale.name != model:
            stale.unlink(missing_ok=True)


def load(folder: Path, selector: Selector[Any], inner: Strategy) -> Saved | None:
    """Return the last state written, with the inner strategy's arrays put back; None where there is none yet."""
    if not (folder / INDEX).exists():
        return None
    index = read_json(folder / INDEX)
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise InputError(f"{folder / INDEX} is not a Flower state of format {FORMAT}: use another folder")
    try:
        stored = read_npz(folder / Path(index["model"]).name)
        arrays = None
        if index["arrays"] is not None:
            arrays = ArrayRecord({key: Array(stored[f"model-{i}"]) for i, key in enumerate(index["arrays"])})
        _put_own_arrays(inner, index["inner"], stored)
        return Saved(
            round=int(index["round"]),
            session=Session.restore(folder / Path(index["session"]).name, selector),
            arrays=arrays,
            moment_steps={str(name): int(step) for name, step in index["moment_steps"].items()},
            moment_width=index["moment_width"],
        )
    except (KeyError, TypeError, AttributeError) as cause:
        raise InputError(f"{folder / INDEX} is damaged: {cause!r}") from cause


def append_round(folder: Path, entry: Mapping[str, Any]) -> None:
    """Add a line to the folder's diary of rounds."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ROUNDS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry, allow_nan=False) + "\n")


def chain(inner: Any) -> Iterator[Any]:
    """Yield the strategy, and what it wraps: Flower's wrappers call that `strategy`."""
    while inner is not None:
        yield inner
        inner = getattr(inner, "strategy", None)


def _own_arrays(inner: Strategy) -> tuple[dict[str, NDArray[Any]], list[dict[str, Any]]]:
    """Momenta and the like: attributes that are a dict or a list of arrays. Where Flower keeps them so, all of them."""
    arrays: dict[str, NDArray[Any]] = {}
    layout: list[dict[str, Any]] = []
    for depth, strategy in enumerate(chain(inner)):
        for name, value in sorted(vars(strategy).items()):
            keys = list(value) if isinstance(value, dict) else None
            parts = list(value.values()) if isinstance(value, dict) else value
            if not (isinstance(parts, list) and parts and all(isinstance(part, np.ndarray) for part in parts)):
                continue
            start = len(arrays)
            arrays |= {f"inner-{start + i}": part for i, part in enumerate(parts)}
            layout.append({"depth": depth, "name": name, "keys": keys, "start": start, "count": len(parts)})
    return arrays, layout


def _put_own_arrays(inner: Strategy, layout: list[dict[str, Any]], stored: Mapping[str, NDArray[Any]]) -> None:
    strategies = list(chain(inner))
    for item in layout:
        if item["depth"] >= len(strategies) or not hasattr(strategies[item["depth"]], item["name"]):
            raise InputError(
                f"the saved state has {item['name']!r} of another strategy: wrap the same one, or start anew"
            )
        parts = [stored[f"inner-{item['start'] + i}"] for i in range(item["count"])]
        value = parts if item["keys"] is None else dict(zip(item["keys"], parts, strict=True))
        setattr(strategies[item["depth"]], item["name"], value)
