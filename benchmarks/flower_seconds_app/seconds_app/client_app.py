"""A node that sleeps as long as its delay says, and trains."""

from __future__ import annotations

import time

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpace.flower import local_steps, report_mod
from seconds_app import task


def mine(context: Context) -> tuple[task.Floats, np.ndarray]:
    """Return this node's images and labels."""
    return task.read(str(context.run_config["data"]), str(context.node_config["partition-id"]))


def features(message: Message, context: Context) -> tuple[task.Floats, task.Floats]:
    """Return last-layer inputs and one-hot labels: all there is to a softmax regression."""
    x, y = mine(context)
    return x, np.eye(task.CLASSES)[y]


app = ClientApp(mods=[report_mod(features=features)])


@app.train()
def fit(message: Message, context: Context) -> Message:
    """Sleep, and train on this node's images; the metrics say when, for the table of where the time goes."""
    began = time.time()
    config, part = context.run_config, str(context.node_config["partition-id"])
    turn = int(message.content["config"]["server-round"])
    rng = np.random.default_rng([int(config["seed"]), int(part), turn])
    usual = int(config["local-epochs"])
    epochs = local_steps(message, usual)  # fewer where the scheme asks for less work
    sleep = task.delay(str(config["data"]), part) * rng.lognormal(0.0, 0.2) * epochs / usual
    time.sleep(sleep)
    x, y = mine(context)
    model = message.content["arrays"]["w"].numpy()
    trained, loss = task.train(model, x, y, lr=float(config["lr"]), epochs=epochs, seed=1000 * turn + int(part))
    stamps = {"part": float(part), "began": began, "slept": sleep, "ended": time.time()}
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(y), **stamps})
    return Message(RecordDict({"arrays": ArrayRecord({"w": Array(trained)}), "metrics": metrics}), reply_to=message)
