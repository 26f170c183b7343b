"""A node under SecAgg+ that a test can hold at work, by files in the folder `gate`.

The test writes `hold-2`: from now on partition 2 writes `held-2` when it trains, and waits for `go`.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp

from fedpace.flower import report_mod, secure_mod

WIDTH = 4
PATIENCE = 600
"""Seconds for which a test may hold a task."""


def rows(message: Message, context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Return this node's features and targets."""
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    return rng.normal(size=(12, WIDTH)), np.eye(2)[rng.integers(2, size=12)]


app = ClientApp(mods=[secaggplus_mod, secure_mod, report_mod(features=rows)])


@app.train()
def fit(message: Message, context: Context) -> Message:
    """Go a part of the way to this node's own target."""
    part, gate = int(context.node_config["partition-id"]), Path(str(context.run_config["gate"]))
    if (gate / f"hold-{part}").exists():
        (gate / f"held-{part}").touch()
        for _ in range(2 * PATIENCE):
            if (gate / "go").exists():
                break
            time.sleep(0.5)
    model = message.content["arrays"]["w"].numpy()
    trained = model + 0.3 * (float(part) - model)
    metrics = MetricRecord({"train_loss": 1.0, "num-examples": 12})
    return Message(RecordDict({"arrays": ArrayRecord({"w": Array(trained)}), "metrics": metrics}), reply_to=message)
