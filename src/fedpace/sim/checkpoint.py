"""Checkpoints of a running simulation: `Checkpoints` saves its state to disk and restores it.

    checkpoint-12/
      state.json              the round, the clock, events in flight, digests of the rounds recorded so far
      tensors.safetensors     the shared model, older versions in use, the server step's state, SCAFFOLD's control
                              variates
      session.json, arrays-*  the coordinator (`fedpace.core.saving`)

A checkpoint is written under a temporary name and renamed when it is complete. The previous checkpoint is removed only
after that. So the newest folder named `checkpoint-*` is always consistent, even if the process is killed. Every random
draw is keyed by seed, step and client, so a restored run continues bit for bit.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from fedpace._base.errors import InputError
from fedpace._base.files import Chunk, json_bytes, keeping, read_json, rows_of, write_atomically
from fedpace.core.coordinator import Coordinator
from fedpace.core.tasks import Event, Events
from fedpace.sim.rounds import Simulation

FORMAT = 4
NAME = "checkpoint-{}"
PATTERN = re.compile(r"checkpoint-(\d+)")
UNFINISHED = re.compile(r"\.checkpoint-\d+\.[0-9a-f]{16}")
"""Temporary name of a checkpoint that is being written."""
STATE = "state.json"
TENSORS = "tensors.safetensors"
SERVER = "server/"
MODEL = "model/"
VARIATES = "variates/"
MEMORIES = "memories/"

CHECKPOINT_SHARE = 0.02
"""Largest share of a run's time that checkpoints may take if no interval is set."""


@dataclass(frozen=True)
class Restored:
    """Facts of a restored checkpoint that are not part of the simulation's state."""

    round: int
    """Last completed round."""
    wall_seconds: float
    """Real seconds that the run had taken."""
    digests: str = ""
    """Digests of the rounds recorded so far (`RunWriter.digests`); empty in older checkpoints."""


class Checkpoints:
    """The checkpoints in the folder of a run.

    Args:
        folder: the run's folder.
        every: real seconds between checkpoints; 0 = one after every round; None = as often as possible while
            checkpoints take at most 2 % of the run's time.
    """

    def __init__(self, folder: Path, *, every: float | None = None) -> None:
        if every is not None and not every >= 0:
            raise InputError(f"the seconds between two checkpoints must be at least 0, but {every} came")
        self.folder = folder
        self.every = every
        self._began = time.monotonic()
        self._last: float | None = None
        self._spent = 0.0

    def save_if_due(self, simulation: Simulation, *, wall_seconds: float, digests: Callable[[], str] = str) -> bool:
        """Save the simulation if a checkpoint is due; return whether it was saved.

        `digests` is called only then, and returns the digests of the rounds recorded so far.
        """
        began = time.monotonic()
        if not self._due(began):
            return False
        self.save(simulation, wall_seconds=wall_seconds, digests=digests())
        self._last = time.monotonic()
        self._spent += self._last - began
        return True

    def _due(self, now: float) -> bool:
        if self.every is None:
            return self._spent <= CHECKPOINT_SHARE * (now - self._began)
        return now - (self._began if self._last is None else self._last) >= self.every

    def save(self, simulation: Simulation, *, wall_seconds: float, digests: str = "") -> None:
        """Write the state after the last yielded round, and remove the previous checkpoint."""
        number = simulation.coordinator.step
        final = self.folder / NAME.format(number)
        unfinished = self.folder / f".{final.name}.{secrets.token_hex(8)}"
        with keeping(final):
            try:
                unfinished.mkdir()
                _write(simulation, unfinished, wall_seconds, digests)
                if final.exists():
                    shutil.rmtree(final)
                unfinished.rename(final)
                _sync(self.folder)
            except BaseException:
                shutil.rmtree(unfinished, ignore_errors=True)
                raise
        for path in self._all():
            if path != final:
                shutil.rmtree(path, ignore_errors=True)

    def restore(self, simulation: Simulation) -> Restored | None:
        """Load the newest checkpoint into a newly built `simulation`; return None if there is no checkpoint."""
        complete = [path for path in self._all() if PATTERN.fullmatch(path.name)]
        if not complete:
            return None
        return _read(simulation, max(complete, key=lambda path: int(path.name.rpartition("-")[2])))

    def clear(self) -> None:
        """Remove all checkpoints, for example after the run has ended."""
        for path in self._all():
            shutil.rmtree(path, ignore_errors=True)

    def _all(self) -> list[Path]:
        return [path for path in self.folder.iterdir() if is_checkpoint(path)]


def is_checkpoint(path: Path) -> bool:
    """Return whether `path` is a folder with the name of a checkpoint, complete or not."""
    named = PATTERN.fullmatch(path.name) or UNFINISHED.fullmatch(path.name)
    return named is not None and path.is_dir() and not path.is_symlink()


def save_model(simulation: Simulation, path: Path) -> None:
    """Write the shared model, with the tensor names of the torch module; read it with `safetensors.torch.load_file`."""
    with keeping(path):
        trainer = simulation.trainer
        write_atomically(path, trainer.to_bytes(trainer.named_tensors(simulation.parameters)))


def _write(simulation: Simulation, folder: Path, wall_seconds: float, digests: str) -> None:
    # First: it computes the reports of answers in hand, and reports of SCAFFOLD's clients change the control variates.
    simulation.coordinator.save(folder)
    tensors = {MODEL + str(version): model for version, model in simulation.models.items()}
    stepping, vectors = simulation.aggregator.saved()
    tensors |= {SERVER + name: vector for name, vector in vectors.items()}
    if simulation.variates is not None:
        tensors |= {VARIATES + name: tensor for name, tensor in simulation.variates.tensors().items()}
    private: dict[str, Any] = {}
    if simulation.groups is not None:
        private, memories = simulation.groups.saved()
        tensors |= {MEMORIES + name: simulation.trainer.to_native(vector) for name, vector in memories.items()}
    state = {
        "format": FORMAT,
        "round": simulation.coordinator.step,
        "now": simulation.time.now,
        "skipped": simulation.time.skipped,
        "server": {"name": simulation.server.name, "state": stepping},
        "events": [list(event) for event in simulation.events.all(simulation.coordinator.task_table.tasks)],
        "wall_seconds": wall_seconds,
        "digests": digests,
        **({} if simulation.groups is None else {"private": private}),
    }
    write_atomically(folder / TENSORS, _safetensors(tensors))
    write_atomically(folder / STATE, json_bytes(state))
    _sync(folder)


def _read(simulation: Simulation, folder: Path) -> Restored:
    state = read_json(folder / STATE)
    try:
        tensors = simulation.trainer.from_bytes((folder / TENSORS).read_bytes())
        if state["format"] != FORMAT:
            raise InputError(
                f"{folder} is a checkpoint of format {state['format']}, and this fedpace goes on from format {FORMAT}: "
                "remove it, and the run starts anew"
            )
        coordinator = Coordinator.restore(folder, simulation.scheme)
        if state["round"] != coordinator.step or coordinator.clients != simulation.coordinator.clients:
            raise InputError(f"{folder} is not a checkpoint of this run")
        models = {int(name.removeprefix(MODEL)): tensors.pop(name) for name in list(tensors) if name.startswith(MODEL)}
        like = simulation.trainer.initial
        if any(model.shape != like.shape or model.dtype != like.dtype for model in models.values()):
            raise InputError(f"{folder} holds another model than this run's")
        if state["server"]["name"] != simulation.server.name:
            raise InputError(f"{folder} was made with the server step {state['server']['name']!r}: use the same")
        vectors = {name.removeprefix(SERVER): tensors.pop(name) for name in list(tensors) if name.startswith(SERVER)}
        simulation.aggregator.load(state["server"]["state"], vectors)
        memories = {n.removeprefix(MEMORIES): tensors.pop(n) for n in list(tensors) if n.startswith(MEMORIES)}
        if simulation.groups is not None:
            simulation.groups.load(state["private"], memories)
        if simulation.variates is not None:
            simulation.variates.load({name.removeprefix(VARIATES): tensor for name, tensor in tensors.items()})
        simulation.time.now = float(state["now"])
        simulation.time.skipped = int(state["skipped"])
        events = Events(Event(*event) for event in state["events"])
        restored = Restored(int(state["round"]), float(state["wall_seconds"]), str(state.get("digests", "")))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as cause:
        if isinstance(cause, InputError):
            raise
        raise InputError(f"{folder} is damaged ({cause!r}): remove it, and the run starts anew") from cause
    simulation.models.clear()
    simulation.models.update(models)  # in place, because the clients hold this dict
    simulation.coordinator, simulation.events = coordinator, events
    return restored


KINDS = {"float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "uint8": "U8"}
"""Names of types in the safetensors format."""


def _safetensors(tensors: Mapping[str, Any]) -> Iterator[Chunk]:
    """Yield the content of a safetensors file; `safetensors.torch.save` would copy the server's memory twice."""
    tables = {name: rows_of(tensor) for name, tensor in tensors.items()}
    ordered = sorted(tables, key=lambda name: (-tables[name][1].itemsize, name))  # keeps numbers aligned
    header: dict[str, Any] = {}
    start = 0
    for name in ordered:
        shape, kind, _ = tables[name]
        end = start + math.prod(shape) * kind.itemsize
        header[name] = {"dtype": KINDS[str(kind)], "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in ordered:
        yield from tables[name][2]


def _sync(folder: Path) -> None:
    """Flush a folder's entries to disk, so that they survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
