"""The contestants, each on its own clock: real seconds from when the server begins."""

from __future__ import annotations

import json
import random
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedpace.flower import PacedServer, PacedStrategy
from fedpace.hosting.live_server import Spent
from fedpace.records.holding import Holding
from seconds_app import task
from seconds_app.travels import Travels

app = ServerApp()
HOLD, EVERY = 8, 5.0
"""The target is held where the mean over so many instants, so many seconds apart, meets it."""


class DoneError(Exception):
    """The target is held, or the time is up."""


def contestant(name: str, seed: int, state: Path) -> Any:
    """Return a strategy or server, with a `start`.

    Args:
        name: `random-4` and `fedbuff-4` say how many nodes a round has, and how many answers the buffer.
        seed: of what it draws.
        state: its folder, where it has one.
    """
    scheme, _, number = name.rpartition("-") if name[-1].isdigit() else (name, "", "0")
    if scheme in ("random", "everybody"):
        random.seed(seed)  # Flower samples with the global generator
        part = int(number) / task.NODES if scheme == "random" else 1.0
        return FedAvg(fraction_train=part, fraction_evaluate=0.0, min_available_nodes=task.NODES)
    if scheme == "pace":
        inner = FedAvg(fraction_evaluate=0.0, min_available_nodes=task.NODES)
        return PacedStrategy(inner, "pace", seed=seed, state=state, warmup="full", warmup_wait=0.5)
    if scheme == "fedbuff":
        return PacedServer("fedbuff", seed=seed, state=state, buffer=int(number))
    if scheme == "pace-async+work":
        return PacedServer("pace-async", work="adaptive", accepts_work=True, seed=seed, state=state)
    return PacedServer(scheme, seed=seed, state=state)


def rounded(spent: Spent) -> dict[str, float]:
    """Return what something took, to a tenth of a millisecond."""
    return {name: round(value, 4) for name, value in asdict(spent).items()}


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train until the target is held, and write down the accuracy by seconds."""
    config = context.run_config
    name, seed, out = str(config["contestant"]), int(config["seed"]), Path(str(config["out"]))
    x, y = task.read(str(config["data"]), "test")
    while len(list(grid.get_node_ids())) < task.NODES:
        time.sleep(1)
    travels = Travels(grid)
    began = time.monotonic()
    target = float(config["target"])
    holding = Holding(target, "up", hold=HOLD, every=EVERY, looks="grid")
    curve: list[tuple[float, float]] = []
    server = contestant(name, seed, out / f"{name}-{seed}")

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        seconds, reached = time.monotonic() - began, task.accuracy(arrays["w"].numpy(), x, y)
        curve.append((round(seconds, 2), round(reached, 4)))
        holding.add(seconds, reached)
        if holding.held is not None or seconds > float(config["limit"]):
            raise DoneError
        return MetricRecord({"accuracy": reached})

    try:
        initial = ArrayRecord({"w": Array(np.zeros((task.WIDTH, task.CLASSES)))})
        server.start(grid=grid, initial_arrays=initial, num_rounds=100_000, evaluate_fn=evaluate)
    except DoneError:
        pass
    held, crossed = holding.held, holding.crossed
    watch = getattr(getattr(server, "_server", None), "watch", None)
    result = {
        "contestant": name,
        "seed": seed,
        "held": None if held is None else curve[held][0],
        "crossed": None if crossed is None else curve[crossed][0],
        "steps": len(curve) - 1,
        "seconds": curve[-1][0],
        "spent": {} if watch is None else {what: rounded(spent) for what, spent in watch.spent.items()},
        "curve": curve,
        "tasks": travels.table(),
    }
    written = out / f".{name}-{seed}.json"
    written.write_text(json.dumps(result), encoding="utf-8")
    written.replace(out / f"{name}-{seed}.json")
