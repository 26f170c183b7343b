"""Small runs of everything that is no simulation: Flower in one process, a loop of one's own, and what is saved.

A run returns lines of JSON. Everything in them is decided by seeds and by seconds that clients report, never by the
clock on the wall. NVFlare has no run here: its parts need nvflare, and share all that decides with Flower's.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "helpers"))

from cases import Case

import fedpace
from fedpace._base.files import read_json, read_npz
from fedpace.records.run import read_run
from fedpace.sim.checkpoint import Checkpoints

STEPS = 8
SAVED_AFTER = 3

# -- Flower, in one process ----------------------------------------------------------------------------------------


def flower_run(scheme: str, rounds: bool, options: dict[str, Any], liar: float = 1.0) -> list[str]:
    """Train on the grid in one process; client 2 fails at times, and client 3 sends its update times `liar`."""
    from flower_fleet import as_numpy, fleet, mod, start
    from flower_grid import Tools
    from flwr.serverapp.strategy import FedAvg

    from fedpace.flower import PacedServer, PacedStrategy

    calls = {"count": 0}

    def at_times(message: Any, context: Any) -> None:
        calls["count"] += 1
        if calls["count"] % 3 == 0:
            raise RuntimeError("fails every third time")

    apps = {
        2: Tools.app([mod(Tools)], target=3.0, fail=at_times),
        3: Tools.app([mod(Tools)], target=4.0 * liar),
    }
    with in_task(), tempfile.TemporaryDirectory() as folder:
        grid = fleet(Tools, 8, apps=apps)
        how = {"seed": 3, "clock": "reported", "state": folder, "sketch": 4, **options}
        if rounds:
            strategy = PacedStrategy(FedAvg(), scheme, **how)
            model = Tools.rounds(strategy, grid, start(Tools), STEPS)
        else:
            model = PacedServer(scheme, **how).start(grid, start(Tools), STEPS, evaluate_nodes=0).arrays
        lines = [json.dumps(_plain(asdict(entry))) for entry in read_run(Path(folder)).rounds]
        trained = grid.trained()
    return [*lines, json.dumps({"model": _plain(as_numpy(model)), "trained": trained})]


@contextlib.contextmanager
def in_task() -> Iterator[None]:
    """Be inside a task, as Flower runs a ServerApp: messages take their sender from there."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ModuleNotFoundError:
        yield
        return
    names = ("_task_id", "_run_id", "_node_id")
    before = {name: getattr(TaskIdentity, name) for name in names}
    for name in names:
        setattr(TaskIdentity, name, 1)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(TaskIdentity, name, value)


# -- a loop of one's own -------------------------------------------------------------------------------------------


def own_run(scheme: str, settings: dict[str, Any], robust: str | None = None, **options: Any) -> list[str]:
    """Train with Coordinator and SharedModel: clients fail, lie, leave, come back; the server restarts once."""
    clients = 9
    targets = fedpace.stream(7, "targets").normal(size=(clients, 5))
    rule = None if robust is None else fedpace.make_robust(robust)
    policy = fedpace.make_selector(scheme, **options)
    coordinator = fedpace.Coordinator(policy, fedpace.Settings(seed=5, **settings))
    coordinator.join([f"c{i}" for i in range(clients)], samples=[10.0 + i for i in range(clients)])
    model = fedpace.SharedModel({"w": np.zeros(5)}, policy.server or fedpace.make_server("average"), robust=rule)
    lines, queue, sent, came, now, broke = [], [], {}, {}, 0.0, False
    while coordinator.step < STEPS:
        due = coordinator.due(now)
        if due.step is not None:
            ids = [task.id for task, _ in due.step.answers]
            model.apply(coordinator, due.step, {i: {"w": came[i]} for i in ids}, {i: {"w": sent[i]} for i in ids})
            record = coordinator.stepped(now)
            row = {"w": model.arrays["w"], "now": now, **_record(record, coordinator.clients)}
            lines.append(json.dumps(_plain(row)))
            if coordinator.step == SAVED_AFTER:
                coordinator.leave(["c4"])
            if coordinator.step == SAVED_AFTER + 1:
                coordinator.join(["c4"], samples=[44.0])
        for task in due.tasks:
            number = int(str(task.client)[1:])
            took = 1.0 + number * 0.37 + (task.id % 5) * 0.11
            sent[task.id] = model.arrays["w"].copy()
            heapq.heappush(queue, (now + took, task.id, number, took))
        if coordinator.step == SAVED_AFTER and not broke and not due:
            broke = True
            with tempfile.TemporaryDirectory() as folder:
                coordinator.save(folder)
                coordinator = fedpace.Coordinator.restore(folder)
        if due:
            continue
        if not queue and not math.isfinite(coordinator.wake_at):
            break
        if not queue or coordinator.wake_at < queue[0][0]:
            now = max(now, coordinator.wake_at)
            continue
        now, task_id, number, took = heapq.heappop(queue)
        if (number == 6 and task_id % 2) or task_id not in {task.id for task in coordinator.tasks}:
            coordinator.lost(task_id, now, why="told to fail")
            continue
        update = 0.3 * (targets[number] - sent[task_id]) * {0: -8.0, 1: 25.0}.get(number, 1.0)
        came[task_id] = sent[task_id] + update
        features = fedpace.stream(9, "features", number).normal(size=(4, 3)) * (50.0 if number == 1 else 1.0)
        outcome = fedpace.Outcome(
            f"c{number}",
            seconds=took / (9.0 if number == 8 else 1.0),
            loss=float(np.square(sent[task_id] - targets[number]).sum()),
            samples=10.0 + number,
            moment=features,
            update=update[:4],
        )
        coordinator.receive(task_id, outcome, now)
    return lines


def _record(record: Any, ids: tuple[Any, ...]) -> dict[str, Any]:
    names = ("clients", "weights", "failed", "warmed", "heard", "probed", "seconds", "work", "sent", "wasted", "mode")
    return {name: getattr(record, name) for name in names} | {"why": record.explained(ids)}


# -- what is saved -------------------------------------------------------------------------------------------------


def saved(case: Case) -> list[str]:
    """Save a simulation after some rounds, go on with it in another, and return what was saved and what followed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        simulation = case.simulation()
        for _ in islice(simulation.rounds(), SAVED_AFTER + 1):
            pass
        Checkpoints(folder, every=0).save(simulation, wall_seconds=0.0)
        (place,) = folder.iterdir()
        index = read_json(place / "session.json")
        arrays = read_npz(place / Path(index["arrays"]).name)
        lines = [json.dumps({name: _plain(array)}) for name, array in sorted(arrays.items()) if "ledger/" in name]
        again = case.simulation()
        Checkpoints(folder).restore(again)
        rounds = list(islice(again.rounds(), SAVED_AFTER))
    return [*lines, *(json.dumps(_plain(asdict(entry))) for entry in rounds)]


def _plain(value: Any) -> Any:
    """Return a value as JSON knows it."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


MOMENTS = {"warmup": "full", "warmup_wait": 1.0}
RUNS: dict[str, Callable[[], list[str]]] = {
    "flower-pace": lambda: flower_run("pace", True, MOMENTS),
    "flower-random-lazy": lambda: flower_run("random", True, {"k": 3, "warmup": "lazy", "warmup_quota": 2}),
    "flower-oort": lambda: flower_run("oort", True, {"k": 3, **MOMENTS}),
    "flower-divfl": lambda: flower_run("divfl", True, {"k": 3, **MOMENTS}, liar=40.0),
    "flower-fedbuff": lambda: flower_run("fedbuff", False, {"buffer": 2}),
    "flower-fedbuff-liar": lambda: flower_run("fedbuff", False, {"buffer": 3, "momentum": 0.5}, liar=-20.0),
    "flower-pace-async": lambda: flower_run("pace-async", False, {}),
    "flower-pace-in-rounds": lambda: flower_run("pace", False, MOMENTS, liar=-20.0),
    "flower-ca2fl": lambda: flower_run("ca2fl", False, {"buffer": 2}),
    "own-pace": lambda: own_run("pace", {}),
    "own-pace-trained": lambda: own_run("pace", {"warmup_trains": True, "warmup_wait": 0.5, "hear_late": True}),
    "own-random": lambda: own_run("random", {"shares": "samples", "deadline": 3.0}, k=4),
    "own-random-krum": lambda: own_run("random", {"trust": False}, "krum", k=6),
    "own-power-of-choice": lambda: own_run("power-of-choice", {"warmup": "lazy"}, k=3, variant="cpow-d"),
    "own-folb": lambda: own_run("folb", {}, k=3),
    "own-fedbuff": lambda: own_run("fedbuff", {}, buffer=3),
    "own-ca2fl": lambda: own_run("ca2fl", {"shares": "samples"}, buffer=3),
    "own-pace-async": lambda: own_run("pace-async", {}),
    "own-pace-async-median": lambda: own_run("pace-async", {}, "trimmed-mean"),
    **{
        f"saved-{scheme}-{setting}": lambda scheme=scheme, setting=setting: saved(Case(scheme, setting))
        for scheme, setting in (
            ("pace", "observed"),
            ("pace-async", "trust-observed"),
            ("fedbuff", "absent"),
            ("refl", "absent"),
            ("oort", "lazy"),
            ("random", "liars-validated"),
            ("tifl", "scaffold"),
        )
    },
}
"""Name -> run."""


def needs_flower(name: str) -> bool:
    """Return whether a run needs Flower to be installed."""
    return name.startswith("flower-")
