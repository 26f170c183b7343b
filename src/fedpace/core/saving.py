"""A Session as two files: `session.json` for what is small, an npz beside it for the arrays.

The npz carries a digest of its content in its name and is written first; replacing `session.json`, which names it, is
the one step that makes the new state the current one. A crash at any instant leaves a folder that restores.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpace.core.errors import FedpaceError, InputError
from fedpace.core.files import json_bytes, npz_bytes, read_json, read_npz, write_atomically
from fedpace.core.ids import decode_id, encode_id
from fedpace.core.ledger import Ledger
from fedpace.core.protocols import MomentStore
from fedpace.core.providers import selector_class
from fedpace.core.types import Diagnostics, ProbeRequest, Selection, Selector, configuration

if TYPE_CHECKING:
    from fedpace.core.session import Session

FORMAT = 2
INDEX = "session.json"


def save(session: Session, folder: Path) -> None:
    """Write `session` into `folder`."""
    content = npz_bytes(session._ledger.arrays())
    arrays = f"arrays-{hashlib.sha256(content).hexdigest()[:16]}.npz"
    index = {
        "format": FORMAT,
        "arrays": arrays,
        "selector": {
            "name": session.selector.name,
            "options": {name: _number_out(value) for name, value in configuration(session.selector).items()},
        },
        "state": _encode_state(session._state, session.selector.name),
        "settings": {
            "seed": session.seed,
            "shares": session.share_rule,
            "warmup": session.warmup,
            "warmup_quota": session.warmup_quota,
            "warmup_wait": session.warmup_wait,
            "learn_delays": session.learn_delays,
        },
        "step": session.step,
        "now": session.now,
        "probed_step": session._probed_step,
        "clients": [encode_id(client) for client in session.clients],
        "pending": _encode_selection(session.pending),
        "pending_probe": _encode_probe(session.pending_probe),
    }
    encoded = json_bytes(index)
    write_atomically(folder / arrays, content)
    write_atomically(folder / INDEX, encoded)
    for stale in folder.glob("arrays-*.npz"):
        if stale.name != arrays:
            stale.unlink(missing_ok=True)


def restore(cls: type[Session], folder: Path, selector: Selector[Any] | None, moments: MomentStore | None) -> Session:
    """Rebuild the session that `save` wrote into `folder`."""
    index = read_json(folder / INDEX)
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise InputError(f"{folder / INDEX} is not a session of format {FORMAT}")
    try:
        saved = index["selector"]
        options = {name: _as_option(_number_in(value)) for name, value in saved["options"].items()}
        if selector is None:
            selector = selector_class(saved["name"])(**options)
        elif (selector.name, configuration(selector)) != (saved["name"], options):
            raise InputError(
                f"the saved session ran {saved['name']} with {options}, but {selector!r} was given: give the same"
            )
        session = cls(selector, **index["settings"])
        session.step = int(index["step"])
        session.now = float(index["now"])
        session._probed_step = int(index["probed_step"])
        session._state = _decode_state(index["state"], session._state)
        session.pending = _decode_selection(index["pending"])
        session.pending_probe = _decode_probe(index["pending_probe"])
        ids = [decode_id(client) for client in index["clients"]]
        arrays = folder / Path(index["arrays"]).name
    except FedpaceError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as cause:
        raise InputError(f"{folder / INDEX} is damaged: {cause!r}") from cause
    session._ledger = Ledger.from_arrays(ids, read_npz(arrays), learn_delays=session.learn_delays, moments=moments)
    return session


def _as_option(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _encode_state(state: Any, scheme: str) -> Any:
    if state is None:
        return None
    if not dataclasses.is_dataclass(state) or isinstance(state, type):
        raise InputError(
            f"the state of {scheme} is a {type(state).__name__}: it must be None or a frozen dataclass of scalars"
        )
    return {name: _number_out(value) for name, value in dataclasses.asdict(state).items()}


def _decode_state(saved: Any, initial: Any) -> Any:
    if saved is None or initial is None:
        return None
    return type(initial)(**{name: _as_option(_number_in(value)) for name, value in saved.items()})


def _encode_selection(selection: Selection | None) -> Any:
    if selection is None:
        return None
    why = selection.why
    return {
        "step": selection.step,
        "clients": [encode_id(client) for client in selection.clients],
        "weights": selection.weights.tolist(),
        "mode": selection.mode,
        "deadline": _number_out(selection.deadline),
        "warmup": selection.warmup,
        "enough": selection.enough,
        "why": {
            "objective": _number_out(why.objective),
            "predicted_seconds": _number_out(why.predicted_seconds),
            "status": why.status,
            "facts": {name: _number_out(value) for name, value in why.facts.items()},
            "reasons": [[row, reason] for row, reason in why.reasons.items()],
        },
    }


def _decode_selection(saved: Any) -> Selection | None:
    if saved is None:
        return None
    why = saved["why"]
    return Selection(
        step=int(saved["step"]),
        clients=tuple(decode_id(client) for client in saved["clients"]),
        weights=np.asarray(saved["weights"], dtype=np.float64),
        mode=saved["mode"],
        deadline=float(_number_in(saved["deadline"])),
        why=Diagnostics(
            objective=_number_in(why["objective"]),
            predicted_seconds=_number_in(why["predicted_seconds"]),
            status=why["status"],
            facts={name: _number_in(value) for name, value in why["facts"].items()},
            reasons={int(row): reason for row, reason in why["reasons"]},
        ),
        warmup=bool(saved["warmup"]),
        enough=int(saved["enough"]),
    )


def _encode_probe(request: ProbeRequest | None) -> Any:
    if request is None:
        return None
    return {
        "step": request.step,
        "clients": [encode_id(c) for c in request.clients],
        "kind": request.kind,
        "samples": request.samples,
    }


def _decode_probe(saved: Any) -> ProbeRequest | None:
    if saved is None:
        return None
    return ProbeRequest(
        int(saved["step"]), tuple(decode_id(c) for c in saved["clients"]), saved["kind"], int(saved["samples"])
    )


def _number_out(value: Any) -> Any:
    """JSON has no infinity and no NaN: they travel as tagged text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def _number_in(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"float"}:
        return float(value["float"])
    return value
