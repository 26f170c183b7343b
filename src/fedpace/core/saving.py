"""Saving and restoring a Coordinator: `session.json` holds the small values, an npz file holds the arrays.

The name of the npz contains a digest of its content, and `session.json` refers to it. The npz is written first.
Replacing `session.json` then makes the new state valid in one step. A crash at any time leaves a valid saved state.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpace._base import registry
from fedpace._base.codec import Arrays, decode, decode_id, encode, encode_id
from fedpace._base.errors import FedpaceError, InputError
from fedpace._base.files import json_bytes, keeping, npz_bytes, read_json, read_npz, write_atomically
from fedpace.core.settings import Settings
from fedpace.core.step_log import Progress
from fedpace.core.task_table import Packed, TaskTable
from fedpace.core.types import Need, Selector, configuration
from fedpace.moments.store import MomentStore

if TYPE_CHECKING:
    from fedpace.core.coordinator import Coordinator

FORMAT = 9
INDEX = "session.json"
LEDGER = "ledger/"
"""Prefix of the names of the ledger's arrays in the npz."""


def save(coordinator: Coordinator, folder: Path, shell: Mapping[str, Any] | None = None) -> None:
    """Write `coordinator` into `folder`; `shell` holds further values of an object around it, such as a Session."""
    scheme: Any = getattr(coordinator.policy, "selector", coordinator.policy)
    coordinator.check_saveable()
    arrays: Arrays = {}
    index = {
        "format": FORMAT,
        "selector": {"name": scheme.name, "options": _encode_options(scheme)},
        "state": _encode_state(coordinator.state, scheme.name),
        "settings": encode(coordinator.settings),
        "clients": [encode_id(client) for client in coordinator.clients],
        "departed": [(encode_id(client), *rest) for client, *rest in coordinator.ledger.trust.departed.saved()],
        "progress": encode(coordinator.progress, arrays),
        "tasks": encode(coordinator.task_table.packed(), arrays),
        "shell": {name: encode(value) for name, value in (shell or {}).items()},
    }
    tables = arrays | {LEDGER + name: table for name, table in coordinator.ledger.arrays().items()}
    content = npz_bytes(tables)
    index["arrays"] = name = f"arrays-{hashlib.sha256(content).hexdigest()[:16]}.npz"
    encoded = json_bytes(index)
    with keeping(folder):
        write_atomically(folder / name, content)
        write_atomically(folder / INDEX, encoded)
    for stale in folder.glob("arrays-*.npz"):
        if stale.name != name:
            stale.unlink(missing_ok=True)


def restore(
    folder: Path,
    selector: Selector[Any] | None = None,
    moments: MomentStore | None = None,
    shell: Mapping[str, type] | None = None,
    *,
    offers: Iterable[Need] | None = None,
) -> tuple[Coordinator, dict[str, Any]]:
    """Return the coordinator that `save` wrote into `folder`, and the values of its `shell` by name.

    Args:
        folder: with the saved state.
        selector: only needed if the scheme is not registered; must have the saved options.
        moments: an empty store for moments; None = the default store.
        shell: name -> type of each value that an object around the coordinator saved.
        offers: what the host offers now; None = what the saved coordinator was offered.
    """
    from fedpace.core.coordinator import Coordinator

    index = read_json(folder / INDEX)
    found = index.get("format") if isinstance(index, dict) else None
    if found != FORMAT:
        came = f": it has format {found!r}, which this version of fedpace cannot read" if found else ""
        raise InputError(f"{folder / INDEX} is not a saved coordinator of format {FORMAT}{came}")
    given = frozenset(Need) if offers is None else frozenset(offers)
    try:
        stored = read_npz(folder / Path(index["arrays"]).name)
        saved = index["selector"]
        options = {name: decode(Any, value) for name, value in saved["options"].items()}
        if selector is None:
            selector = registry.selectors[saved["name"]](**options)
        elif (selector.name, configuration(selector)) != (saved["name"], options):
            raise InputError(
                f"the saved session ran {saved['name']} with {options}, but {selector!r} was given: give the same"
            )
        coordinator = Coordinator(selector, decode(Settings, index["settings"]), moments=moments, offers=given)
        coordinator.state = _decode_state(index["state"], coordinator.state)
        ids = [decode_id(client) for client in index["clients"]]
        tables = {name.removeprefix(LEDGER): table for name, table in stored.items() if name.startswith(LEDGER)}
        coordinator.ledger.load(ids, tables)
        departed = [(decode_id(client), numbers, taken) for client, numbers, taken in index["departed"]]
        coordinator.ledger.trust.departed.load(departed)
        coordinator.progress = decode(Progress, index["progress"], stored)
        if offers is not None:
            coordinator.progress.accepts_work = Need.WORK in given
        coordinator.task_table = TaskTable(decode(Packed, index["tasks"], stored))
        remembered = {name: decode(kind | None, index["shell"].get(name)) for name, kind in (shell or {}).items()}
    except FedpaceError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as cause:
        raise InputError(f"{folder / INDEX} is damaged: {cause!r}") from cause
    return coordinator, remembered


def _encode_options(scheme: Any) -> dict[str, Any]:
    return {name: encode(value) for name, value in configuration(scheme).items()}


def _encode_state(state: Any, scheme: str) -> Any:
    if state is None:
        return None
    if not dataclasses.is_dataclass(state) or isinstance(state, type):
        raise InputError(
            f"the state of {scheme} is a {type(state).__name__}: it must be None or a frozen dataclass of scalars"
        )
    return {name: encode(value) for name, value in dataclasses.asdict(state).items()}


def _decode_state(saved: Any, initial: Any) -> Any:
    if saved is None or initial is None:
        return None
    return type(initial)(**{name: decode(Any, value) for name, value in saved.items()})
