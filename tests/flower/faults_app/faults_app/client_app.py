"""A node that a test can hold at work, by files in the folder `gate`, so that no test has to guess when it works.

The test writes `hold-2`: from now on tasks of partition 2 write `held-2-ID` when they begin, and wait for `go`. Every
task that was trained leaves `done-2-ID`. NumPy only: a process is started per task, and importing torch would be most
of what these tests do.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpace.flower import report_mod

WIDTH = 4
PATIENCE = 900
"""Seconds for which a test may hold a task."""


def rows(message: Message, context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Return this node's features and targets."""
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    return rng.normal(size=(12, WIDTH)), np.eye(2)[rng.integers(2, size=12)]


app = ClientApp(mods=[report_mod(features=rows)])


@app.train()
def fit(message: Message, context: Context) -> Message:
    """Go a part of the way to this node's own target."""
    config, part = context.run_config, int(context.node_config["partition-id"])
    gate, task = Path(str(config["gate"])), f"{part}-{uuid.uuid4().hex}"
    if config["raises"] == part:
        raise RuntimeError("this client was told to fail")
    if (gate / f"hold-{part}").exists():
        (gate / f"held-{task}").touch()
        for _ in range(2 * PATIENCE):
            if (gate / "go").exists():
                break
            time.sleep(0.5)
    model = message.content["arrays"]["w"].numpy()
    target = 1.0 + 0.1 * np.sin(part + np.arange(WIDTH))
    trained, loss = model + 0.3 * (target - model), float(np.mean((target - model) ** 2))
    (gate / f"done-{task}").touch()
    metrics = MetricRecord({"train_loss": loss, "num-examples": 12})
    return Message(RecordDict({"arrays": ArrayRecord({"w": Array(trained)}), "metrics": metrics}), reply_to=message)
