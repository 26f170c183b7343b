"""A usual Flower client. The only line for fedpace is the mod."""

from __future__ import annotations

import time

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpace.flower import report_mod
from flower_digits.task import Net, load, seconds_of, train

torch.set_num_threads(1)


def modelled_delay(message: Message, context: Context, measured: float) -> float:
    """Stamp the seconds that a delay model gives this client in this round: slow clients on one machine."""
    config = context.run_config
    if not config["delays"]:
        return measured
    node, step = context.node_config, message.content.config_records["config"]["server-round"]
    drawn = seconds_of(str(config["delays"]), _whole(node["num-partitions"]), _whole(config["seed"]), _whole(step))
    return drawn[_whole(node["partition-id"])]


def _whole(value: object) -> int:
    """Return a whole number of a configuration, whose values may have any type."""
    return int(str(value))


app = ClientApp(mods=[report_mod(module="classifier", delay=modelled_delay)])


@app.train()
def fit(message: Message, context: Context) -> Message:
    """Train on this node's images."""
    config, node = context.run_config, context.node_config
    if config["raises"] == node["partition-id"]:
        raise RuntimeError("this client was told to fail")
    time.sleep(float(config["sleep"]))
    data = load(_whole(node["num-partitions"]), _whole(config["seed"]))
    samples = data.train[_whole(node["partition-id"])]
    net = Net()
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    loss = train(
        net,
        torch.from_numpy(samples.inputs),
        torch.from_numpy(samples.targets),
        epochs=_whole(config["local-epochs"]),
        lr=float(config["lr"]),
        seed=1000 * _whole(message.content.config_records["config"]["server-round"]) + _whole(node["partition-id"]),
    )
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(samples.targets)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)
