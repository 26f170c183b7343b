"""A simulation in mid-run, on disk: all that the loop remembers from one round to the next.

    checkpoint-12/
      state.json              the round, the clock, answers on their way, digests of the rounds recorded so far
      tensors.safetensors     the shared model and earlier versions in use, what its server step remembers, SCAFFOLD's
                              variates
      session.json, arrays-*  the coordinator (`fedpace.core.saving`)

A checkpoint is written under another name and renamed when it is complete; only then does the one before it go. So
whenever the process is killed, the newest folder of that name is one consistent state. Everything random is keyed by
seed, step and client, so nothing else is needed to go on bit for bit.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from fedpace._base.errors import InputError
from fedpace._base.files import json_bytes, keeping, read_json, write_atomically
from fedpace.core.coordinator import Coordinator
from fedpace.core.events import Event, Events
from fedpace.sim.rounds import Simulation

FORMAT = 4
NAME = "checkpoint-{}"
PATTERN = re.compile(r"checkpoint-(\d+)")
UNFINISHED = re.compile(r"\.checkpoint-\d+\.[0-9a-f]{16}")
"""Name of a checkpoint while it is being written."""
STATE = "state.json"
TENSORS = "tensors.safetensors"
SERVER = "server/"
MODEL = "model/"
VARIATES = "variates/"

CHECKPOINT_SHARE = 0.02
"""Of the time that a run takes, what checkpoints may cost when nobody says how often they are wanted."""


@dataclass(frozen=True)
class Restored:
    """What a checkpoint says beside the state itself."""

    round: int
    """The last one that is in it."""
    wall_seconds: float
    """Real time that had been spent until then."""
    digests: str = ""
    """Of the rounds that had been recorded until then (`RunWriter.digests`); empty in older checkpoints."""


class Checkpoints:
    """The checkpoints in the folder of a run.

    Args:
        folder: of the run.
        every: real seconds from one to the next, 0 = after every round; None = as often as they take no more than a
            small share of the run's time, after every round where rounds are long.
    """

    def __init__(self, folder: Path, *, every: float | None = None) -> None:
        if every is not None and not every >= 0:
            raise InputError(f"the seconds between two checkpoints must be at least 0, but {every} came")
        self.folder = folder
        self.every = every
        self._began = time.monotonic()
        self._last: float | None = None
        self._spent = 0.0

    def offer(self, simulation: Simulation, *, wall_seconds: float, digests: Callable[[], str] = str) -> bool:
        """Save the simulation if it is time to; say whether it was. `digests` tells those of the rounds so far."""
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
        """Write the state after the round that was last yielded, replacing the checkpoint before it."""
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
        """Put `simulation`, newly made, into the state of the newest checkpoint; None where there is none."""
        complete = [path for path in self._all() if PATTERN.fullmatch(path.name)]
        if not complete:
            return None
        return _read(simulation, max(complete, key=lambda path: int(path.name.rpartition("-")[2])))

    def clear(self) -> None:
        """Remove the checkpoints: a run that has ended needs none."""
        for path in self._all():
            shutil.rmtree(path, ignore_errors=True)

    def _all(self) -> list[Path]:
        return [path for path in self.folder.iterdir() if is_checkpoint(path)]


def is_checkpoint(path: Path) -> bool:
    """Whether `path` is a checkpoint by its name, complete or not."""
    named = PATTERN.fullmatch(path.name) or UNFINISHED.fullmatch(path.name)
    return named is not None and path.is_dir() and not path.is_symlink()


def save_model(simulation: Simulation, path: Path) -> None:
    """Write the shared model, each tensor under its name in the module: `safetensors.torch.load_file` reads it."""
    with keeping(path):
        trainer = simulation.trainer
        write_atomically(path, trainer.to_bytes(trainer.named(simulation.parameters)))


def _write(simulation: Simulation, folder: Path, wall_seconds: float, digests: str) -> None:
    tensors = {MODEL + str(version): model for version, model in simulation.models.items()}
    stepping, vectors = simulation.aggregator.saved()
    tensors |= {SERVER + name: vector for name, vector in vectors.items()}
    if simulation.variates is not None:
        tensors |= {VARIATES + name: tensor for name, tensor in simulation.variates.tensors().items()}
    state = {
        "format": FORMAT,
        "round": simulation.coordinator.step,
        "now": simulation.time.now,
        "skipped": simulation.time.skipped,
        "server": {"name": simulation.server.name, "state": stepping},
        "events": [list(event) for event in simulation.events.all(simulation.coordinator.flight.tasks)],
        "wall_seconds": wall_seconds,
        "digests": digests,
    }
    simulation.coordinator.save(folder)
    write_atomically(folder / TENSORS, simulation.trainer.to_bytes(tensors))
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
    simulation.models.update(models)  # in place: the clients look into it
    simulation.coordinator, simulation.events = coordinator, events
    return restored


def _sync(folder: Path) -> None:
    """Make names in a folder survive a power failure, as `write_atomically` does for contents."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
