"""A usual Flower server that trains until the target, and prints one line per step."""

from __future__ import annotations

from typing import Any

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from paceasync.dataset import test_images
from paceasync.model import Net, accuracy, initial_model
from paceasync.strategy import make_strategy, now
from paceasync.utils import TargetReachedError

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train until the target or the last round."""
    config: Any = context.run_config
    nodes = len(list(grid.get_node_ids()))
    x, y = test_images(nodes, float(config["alpha"]), int(config["seed"]))
    strategy = make_strategy(config, nodes)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        net = Net()
        net.load_state_dict(arrays.to_torch_state_dict())
        reached, clock = accuracy(net, x, y), now(strategy)
        print(f"PACEASYNC step {server_round} seconds {clock:.1f} accuracy {reached:.4f}", flush=True)
        if reached >= float(config["target"]):
            raise TargetReachedError(f"accuracy {reached:.4f} after {server_round} steps and {clock:.1f} s")
        return MetricRecord({"accuracy": reached, "seconds": clock})

    try:
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(initial_model(int(config["seed"])).state_dict()),
            num_rounds=int(config["num-server-rounds"]),
            evaluate_fn=evaluate,
        )
    except TargetReachedError as reached:
        print(f"PACEASYNC target reached: {reached}", flush=True)
