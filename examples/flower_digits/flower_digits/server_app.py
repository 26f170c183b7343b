"""A usual Flower server. The only line for fedpace is the strategy around the strategy, or the server instead of it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import fedpace
from fedpace.flower import PacedServer, PacedStrategy, reported_seconds
from flower_digits.task import Net, accuracy, initial_model, load

app = ServerApp()


class TimedFedAvg(FedAvg):
    """Flower's own sampling, with the virtual clock beside it: a round lasts as long as its slowest client."""

    now = 0.0

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Read the stamped seconds, and aggregate as ever."""
        replies = list(replies)
        self.now += max((reported_seconds(reply) for reply in replies if not reply.has_error()), default=0.0)
        return super().aggregate_train(server_round, replies)


def make_strategy(config: Any, nodes: int) -> TimedFedAvg | PacedStrategy | PacedServer:
    """Return Flower's own strategy, fedpace around it, or fedpace's server where the scheme works without rounds."""
    k, seed, name = int(config["k"]), int(config["seed"]), str(config["selector"])
    if name == "flower":
        random.seed(seed)  # Flower samples with the global generator
        return TimedFedAvg(fraction_train=k / nodes, fraction_evaluate=0.0)
    settings: dict[str, Any] = {
        "seed": seed,
        "clock": "reported" if config["delays"] else "server",
        "warmup": str(config["warmup"]),
        "warmup_quota": int(config["warmup-quota"]),
        "warmup_wait": float(config["warmup-wait"]),
        "state": str(config["state"]) or None,
    }
    scheme = fedpace.make_selector(name)
    options = {"k": k, "buffer": max(1, k // 2)}
    scheme = fedpace.make_selector(
        name, **{option: value for option, value in options.items() if hasattr(scheme, option)}
    )
    if not getattr(scheme, "rounds", True):
        return PacedServer(scheme, **settings)
    return PacedStrategy(FedAvg(fraction_evaluate=0.0), scheme, **settings)


class TargetReachedError(Exception):
    """Flower's loop has no early stop."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train until the target or the last round, and print one line per round."""
    config: Any = context.run_config
    nodes = len(list(grid.get_node_ids()))
    data = load(int(config["partitions"]) or nodes, int(config["seed"]))
    x, y = torch.from_numpy(data.test.inputs), torch.from_numpy(data.test.targets)
    strategy = make_strategy(config, nodes)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        net = Net()
        net.load_state_dict(arrays.to_torch_state_dict())
        reached = accuracy(net, x, y)
        now = strategy.now if isinstance(strategy, TimedFedAvg) else strategy.coordinator.now
        print(f"DIGITS round {server_round} clock {now:.1f} accuracy {reached:.4f}", flush=True)
        if reached >= float(config["target"]):
            raise TargetReachedError(f"accuracy {reached:.4f} after {server_round} rounds and {now:.1f} s")
        return MetricRecord({"accuracy": reached, "clock": now})

    try:
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(initial_model(int(config["seed"])).state_dict()),
            num_rounds=int(config["num-server-rounds"]),
            evaluate_fn=evaluate,
        )
    except TargetReachedError as reached:
        print(f"DIGITS target {config['target']} reached: {reached}", flush=True)
