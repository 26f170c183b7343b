"""What is killed: runs of the simulator on every engine, and servers. Each is what begins or goes on in a folder."""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from fedpace import Settings, make_selector, stream
from fedpace.config import parse_experiment
from fedpace.core.coordinator import Coordinator
from fedpace.core.tasks import Task
from fedpace.hosting.live_server import Host, Server
from fedpace.hosting.replies import Note, Raw, pack_moment
from fedpace.hosting.shared_model import SharedModel
from fedpace.moments import factor_from_features
from fedpace.records.run import read_run
from fedpace.runner import Execution, Job, run_job
from fedpace.sim.engines.engine import EngineOptions

ROOT = Path(__file__).parents[2]
TRAINED = "trained.txt"
"""Where clients of servers note every training, beside what the server keeps."""
TABLE: dict[str, Any] = {
    "name": "killed",
    "seeds": 1,
    "data": {"name": "quadratic", "clients": 20, "samples": 10, "test_samples": 10, "dimension": 8},
    "model": {"name": "linear"},
    "delays": {"name": "lognormal"},
    "training": {"epochs": 1, "batch": 0, "lr": 0.01, "algorithm": "scaffold"},
    "fleet": {"delays": "observed", "trust": True},
    "availability": {"on": 3.0, "off": 1.0, "crash": 0.1},
    "clock": {"charge_warmup": False},
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
        stopped: makes so many steps in a folder, and stops; given where a kill shows, and must show as a stop after the
            last saved step does. None = a kill must not show at all.
    """

    name: str
    work: Callable[[Path], object]
    result: Callable[[Path], dict[str, str]]
    stopped: Callable[[Path, int], object] | None = None

    def saved(self, folder: Path) -> int:
        """Return the step from which it will go on, where that shows; else 0."""
        index = folder / "paced.json"
        return int(json.loads(index.read_text())["round"]) if self.stopped is not None and index.exists() else 0


def subjects(kinds: Sequence[str], rounds: int) -> Iterator[Subject]:
    """Yield what can be killed, of these engines and hosts."""
    for kind in kinds:
        if kind in ("inline", "processes", "ray"):
            for scheme, options in (ROUNDS_SCHEMES | ASYNC_SCHEMES).items():
                yield Subject(f"{kind}: {scheme}", _simulated(kind, scheme, options, rounds), _recorded)
        elif kind == "server":
            for scheme, options in ROUNDS_SCHEMES.items():
                yield Subject(f"{kind}: {scheme}", partial(_serve, scheme, options, steps=rounds), _kept)
            for scheme, options in ASYNC_SCHEMES.items():
                yield _restarting(f"{kind}: {scheme}", partial(_serve, scheme, options), rounds)
        elif kind == "flower":
            for scheme, options in ROUNDS_SCHEMES.items():
                yield Subject(f"{kind}: {scheme}", partial(_flower, scheme, options, steps=rounds), _kept)
                lazily = {"warmup": "lazy", "warmup_quota": 2, **options}
                named = f"{kind}, newcomers beside rounds: {scheme}"
                yield Subject(named, partial(_flower, scheme, lazily, steps=rounds), _kept)
            for scheme, options in ASYNC_SCHEMES.items():
                yield _restarting(f"{kind}: {scheme}", partial(_flower_without_rounds, scheme, options), rounds)
        else:
            raise SystemExit(f"{kind} is none of inline, processes, ray, server, flower")


def _restarting(name: str, work: Callable[..., object], rounds: int) -> Subject:
    """Return a server without rounds, which asks whoever was at work anew when it comes back."""
    return Subject(name, partial(work, steps=rounds), _counted_once, work)


def _simulated(kind: str, scheme: str, options: dict[str, Any], rounds: int) -> Callable[[Path], object]:
    """Return a run that uses everything a checkpoint must hold."""
    table = {**TABLE, "stop": {"max_rounds": rounds}, "selectors": [{"name": scheme, **options}]}
    if scheme in ASYNC_SCHEMES or scheme == "pace":  # pace refuses SCAFFOLD
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


def _counted_once(folder: Path) -> dict[str, str]:
    """Return what a server keeps, if every step is there once, and every answer in one of them.

    Clients note every training, so that answers in the records are held against what was done, and the records against
    what the server knows of its clients.
    """
    rounds = read_run(folder).rounds
    assert [entry.number for entry in rounds] == list(range(len(rounds))), "a step is missing, or there twice"
    counted: Counter[Any] = Counter(name for entry in rounds for name in entry.clients if name not in entry.failed)
    done: Counter[Any] = Counter((folder / TRAINED).read_text().split())
    assert counted <= done, f"{counted - done} is in the records and was never trained"
    coordinator = Coordinator.restore(folder / json.loads((folder / "paced.json").read_text())["session"])
    known = dict(zip(coordinator.clients, coordinator.ledger.columns["participations"].tolist(), strict=True))
    assert counted == {name: count for name, count in known.items() if count}, "the server counted otherwise"
    blamed = dict(zip(coordinator.clients, coordinator.ledger.columns["failures"].tolist(), strict=True))
    failed = Counter(name for entry in rounds for name in entry.failed)
    assert failed == {name: count for name, count in blamed.items() if count}, "somebody is blamed for a kill"
    return _kept(folder)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# -- servers -------------------------------------------------------------------------------------------------------


def _serve(scheme: str, options: dict[str, Any], folder: Path, steps: int) -> None:
    """Make steps as Flower's and NVFlare's transports drive a server, on the reported clock."""
    names = [f"client-{number}" for number in range(8)]
    settings = Settings(seed=1, warmup_trains=True)
    host = Host("faults", logging.getLogger("faults"), {})
    server = Server(make_selector(scheme, **options), settings, host, clock="reported", folder=folder)
    shared = server.share({"w": np.zeros(6)} if server.saved is None else dict(server.saved.model))
    transport = Here(folder, shared)
    server.membership.update({name: Note(name=name) for name in names})
    at_once = None if server.coordinator.policy.rounds else transport
    while server.coordinator.step < steps:
        step = server.next_step(transport, names)
        assert step is not None
        moved = server.apply(step)
        server.stepped(step, shared.arrays, moved=moved, transport=at_once)
    server.files.close("finished")


class Here:
    """Clients in this process: each moves the model towards a point of its own."""

    def __init__(self, folder: Path, shared: SharedModel) -> None:
        self._folder, self._shared = folder, shared
        self._replies: list[tuple[int, Callable[[], Raw]]] = []

    def send(self, tasks: Sequence[Task]) -> None:
        """Work on tasks at once; a client's seconds are told."""
        model = self._shared.arrays["w"]
        for task in tasks:
            rng = stream(2, "faults", str(task.client))
            point, features, seconds = rng.normal(size=6), rng.normal(size=(12, 4)), float(rng.lognormal())
            trained = {"w": model + 0.3 * (point - model)}
            _note_training(self._folder, str(task.client))
            note = {"name": str(task.client), "seconds": seconds, **pack_moment(factor_from_features(features))}
            raw = Raw(note, {"loss": float(np.square(point - model).sum())}, 12, trained)
            self._replies.append((task.id, partial(_unpacked, raw)))

    def collect(self) -> list[tuple[int, Any]]:
        """Return what has come."""
        came, self._replies = self._replies, []
        return came

    def wait(self, seconds: float) -> None:
        """Nothing is to be waited for."""


def _note_training(folder: Path, client: str) -> None:
    with (folder / TRAINED).open("a") as file:
        file.write(f"{client}\n")


def _flower(scheme: str, options: dict[str, Any], folder: Path, steps: int) -> None:
    """Make rounds by a Flower strategy over the tests' grid: real ClientApps and messages, in one process."""
    from flwr.serverapp.strategy import FedAvg

    from fedpace.flower import PacedStrategy

    inner = FedAvg(min_available_nodes=1, min_train_nodes=1)
    settings = {"clock": "reported", "state": folder, "seed": 1, "warmup": "full", **options}
    PacedStrategy(inner, scheme, **settings).start(_grid(folder), _initial(), num_rounds=steps)


def _flower_without_rounds(scheme: str, options: dict[str, Any], folder: Path, steps: int) -> None:
    """Make steps by fedpace's own server over the same grid; each is evaluated."""
    from flwr.app import MetricRecord

    from fedpace.flower import PacedServer

    server = PacedServer(scheme, clock="reported", state=folder, seed=1, **options)
    server.start(
        _grid(folder),
        _initial(),
        num_rounds=steps,
        evaluate_fn=lambda number, arrays: MetricRecord({"accuracy": float(arrays["w0"].numpy().sum())}),
    )


def _grid(folder: Path) -> Any:
    from flwr.supercore.task_identity import TaskIdentity

    from fedpace.flower import report_mod

    for name in ("_task_id", "_run_id", "_node_id"):
        setattr(TaskIdentity, name, 1)
    tools, grid = _tests_of_flower(), _tests_of_flower().LocalGrid()
    for client in range(8):
        report = report_mod(
            features=partial(_features, tools, client),
            delay=partial(_seconds, client),
        )
        name = f"client-{client}"
        app = tools.client_app([report], target=1.0 + client, fail=lambda *_, name=name: _note_training(folder, name))
        grid.add(100 + client, app, name=name)
    return grid


def _features(tools: Any, client: int, *_: Any) -> Any:
    return tools.Tools.rows(client), np.eye(12)[:, :3]


def _seconds(client: int, *_: Any) -> float:
    return 1.0 + client


def _unpacked(raw: Raw) -> Raw:
    return raw


def _initial() -> Any:
    return _tests_of_flower().arrays([0.0, 0.5, 1.0])


@cache
def _tests_of_flower() -> ModuleType:
    sys.path.append(str(ROOT / "tests" / "helpers"))
    return importlib.import_module("flower_grid")
