"""A usual Flower client. The mod reports what the server needs to know, and the modelled seconds of this node."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpace.flower import report_mod
from paceasync.dataset import node_images, seconds
from paceasync.model import Net, train


def modelled_delay(message: Message, context: Context, measured: float) -> float:
    """Return the seconds of the delay model, so that slow nodes can be simulated on one machine."""
    node, step = context.node_config, message.content.config_records["config"]["server-round"]
    return seconds(
        int(node["partition-id"]), int(node["num-partitions"]), int(context.run_config["seed"]), int(str(step))
    )


app = ClientApp(mods=[report_mod(module="classifier", delay=modelled_delay)])


@app.train()
def fit(message: Message, context: Context) -> Message:
    """Train on the images of this node."""
    config, node = context.run_config, context.node_config
    place, count, seed = int(node["partition-id"]), int(node["num-partitions"]), int(config["seed"])
    x, y = node_images(place, count, float(config["alpha"]), seed)
    net = Net()
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    step = int(str(message.content.config_records["config"]["server-round"]))
    loss = train(
        net,
        x,
        y,
        epochs=int(config["local-epochs"]),
        batch=int(config["batch-size"]),
        lr=float(config["lr"]),
        seed=1000 * step + place,
    )
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(y)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)
