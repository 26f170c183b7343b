"""What is killed: runs of the simulator on every engine, and servers. Each is what begins or goes on in a folder."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from fedpace import Settings, make_selector, stream
from fedpace.config import parse_experiment
from fedpace.core.tasks import Task
from fedpace.hosting.notes import pack_moment
from fedpace.hosting.replies import Note, Raw
from fedpace.hosting.server import Host, Server
from fedpace.moments import factor_from_features
from fedpace.runner import Execution, Job, run_job
from fedpace.sim.engines.choice import EngineOptions

ROOT = Path(__file__).parents[2]
TABLE: dict[str, Any] = {
    "name": "killed",
    "seeds": 1,
    "data": {"name": "quadratic", "clients": 20, "samples": 10, "test_samples": 10, "dimension": 8},
    "model": {"name": "linear"},
    "delays": {"name": "lognormal"},
    "training": {"epochs": 1, "batch": 0, "lr": 0.01, "algorithm": "scaffold"},
    "fleet": {"delays": "observed", "trust": True},
    "availability": {"on": 3.0, "off": 1.0, "crash": 0.1},
    "selectors": [{"name": "random", "k": 5}],
}
ROUNDS_SCHEMES: dict[str, dict[str, Any]] = {
    "oort": {"k": 5},
    "delayhet-submodular": {"target_heterogeneity": 0.5},
    "pace": {},
}
ASYNC_SCHEMES: dict[str, dict[str, Any]] = {"fedbuff": {"buffer": 4, "in_flight": 10}, "pace-async": {}}


@dataclass(frozen=True)
class Subject:
    """Something that is begun, killed and gone on with.

    Args:
        name: of the engine or host, and the scheme.
        work: begins or goes on in a folder, until it is done.
        result: what must come out the same, as text.
    """

    name: str
    work: Callable[[Path], object]
    result: Callable[[Path], dict[str, str]]


def subjects(kinds: Sequence[str], rounds: int) -> Iterator[Subject]:
    """Yield what can be killed, of these engines and hosts."""
    for kind in kinds:
        if kind in ("inline", "processes", "ray"):
            for scheme, options in (ROUNDS_SCHEMES | ASYNC_SCHEMES).items():
                yield Subject(f"{kind}: {scheme}", _simulated(kind, scheme, options, rounds), _recorded)
        elif kind == "server":
            for scheme, options in ROUNDS_SCHEMES.items():
                yield Subject(f"{kind}: {scheme}", _served(scheme, options, rounds), _kept)
        elif kind == "flower":
            for scheme, options in ROUNDS_SCHEMES.items():
                yield Subject(f"{kind}: {scheme}", _flower(scheme, options, rounds), _kept)
                lazily = {"warmup": "lazy", "warmup_quota": 2, **options}
                yield Subject(f"{kind}, newcomers beside rounds: {scheme}", _flower(scheme, lazily, rounds), _kept)


def _simulated(kind: str, scheme: str, options: dict[str, Any], rounds: int) -> Callable[[Path], object]:
    """Return a run that uses everything a checkpoint must hold."""
    table = {**TABLE, "stop": {"max_rounds": rounds}, "selectors": [{"name": scheme, **options}]}
    if scheme in ASYNC_SCHEMES:
        table["training"] = {**TABLE["training"], "algorithm": "fedavg"}
    experiment = parse_experiment(table, "faults")
    workers = 0 if kind == "inline" else 2
    execution = Execution(EngineOptions(kind, workers), checkpoint_every=0.0)  # type: ignore[arg-type]
    Job(experiment, experiment.schemes[0], 0, Path()).simulation()  # what it imports, processes forked from here have
    return lambda folder: run_job(Job(experiment, experiment.schemes[0], 0, folder), execution)


def _recorded(folder: Path) -> dict[str, str]:
    return {name: _digest((folder / name).read_bytes()) for name in ("rounds.jsonl", "model.safetensors")}


def _kept(folder: Path) -> dict[str, str]:
    """Return what a server keeps; npz files are compared by the model in them."""
    index = json.loads((folder / "paced.json").read_text())
    with np.load(folder / index["model"]) as stored:
        model = b"".join(stored[name].tobytes() for name in sorted(stored))
    return {"rounds.jsonl": _digest((folder / "rounds.jsonl").read_bytes()), "model": _digest(model)}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# -- servers -------------------------------------------------------------------------------------------------------


def _served(scheme: str, options: dict[str, Any], rounds: int) -> Callable[[Path], object]:
    """Return a server as Flower's and NVFlare's transports drive it, on the reported clock."""
    names = [f"client-{number}" for number in range(8)]

    def work(folder: Path) -> None:
        settings = Settings(seed=1, warmup_trains=True)
        host = Host("faults", logging.getLogger("faults"), {})
        server = Server(make_selector(scheme, **options), settings, host, clock="reported", folder=folder)
        model = {"w": np.zeros(6)} if server.saved is None else dict(server.saved.model)
        transport = Here(model)
        server.presence.update({name: Note(name=name) for name in names})
        while server.coordinator.step < rounds:
            shared = server.share(model)
            transport.model = model
            step = server.next_step(transport, names)
            assert step is not None
            answers = [(weight, reply.model or {}) for weight, _, reply in server.answers(step)]
            model = shared.step(answers, step.mode)
            server.stepped(step, model, moved=True)
        server.files.close("finished")

    return work


class Here:
    """Clients in this process: each moves the model towards a point of its own."""

    def __init__(self, model: dict[str, Any]) -> None:
        self.model = model
        self._replies: list[tuple[int, Callable[[], Raw]]] = []

    def send(self, tasks: Sequence[Task]) -> None:
        """Work on tasks at once; a client's seconds are told."""
        for task in tasks:
            rng = stream(2, "faults", str(task.client))
            point, features, seconds = rng.normal(size=6), rng.normal(size=(12, 4)), float(rng.lognormal())
            trained = {"w": self.model["w"] + 0.3 * (point - self.model["w"])}
            note = {"name": str(task.client), "seconds": seconds, **pack_moment(factor_from_features(features))}
            raw = Raw(note, {"loss": float(np.square(point - self.model["w"]).sum())}, 12, trained)
            self._replies.append((task.id, lambda raw=raw: raw))

    def collect(self) -> list[tuple[int, Any]]:
        """Return what has come."""
        came, self._replies = self._replies, []
        return came

    def wait(self, seconds: float) -> None:
        """Nothing is to be waited for."""


def _flower(scheme: str, options: dict[str, Any], rounds: int) -> Callable[[Path], object]:
    """Return a Flower strategy over the tests' grid: real ClientApps and messages, in one process."""
    tools = _tests_of_flower()
    from flwr.serverapp.strategy import FedAvg
    from flwr.supercore.task_identity import TaskIdentity

    from fedpace.flower import PacedStrategy, report_mod

    for name in ("_task_id", "_run_id", "_node_id"):
        setattr(TaskIdentity, name, 1)

    def work(folder: Path) -> None:
        grid = tools.LocalGrid()
        for client in range(8):
            report = report_mod(
                features=lambda message, context, client=client: tools.Tools.rows(client),
                delay=lambda message, context, measured, client=client: 1.0 + client,
            )
            grid.add(100 + client, tools.client_app([report], target=1.0 + client), name=f"client-{client}")
        strategy = PacedStrategy(
            FedAvg(min_available_nodes=1, min_train_nodes=1),
            scheme,
            clock="reported",
            state=folder,
            seed=1,
            **{"warmup": "full", **options},
        )
        strategy.start(grid, tools.arrays([0.0, 0.5, 1.0]), num_rounds=rounds)

    return work


def _tests_of_flower() -> ModuleType:
    spec = importlib.util.spec_from_file_location("flower_grid", ROOT / "tests" / "flower" / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
