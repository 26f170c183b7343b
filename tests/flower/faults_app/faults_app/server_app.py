"""A server that trains until it is told to stop, by the file `stop` in the folder `gate`.

It writes there how many steps it found when it started, `began-3`, and `stopped` when it has.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from faults_app.client_app import WIDTH
from fedpace._base.registry import selectors
from fedpace.flower import PacedServer, PacedStrategy

app = ServerApp()
OPTIONS = {"fedbuff": {"buffer": 2}, "random": {"k": 4}}


class StoppedError(Exception):
    """The test has seen enough."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and record after each step how far the model is."""
    config = context.run_config
    scheme, gate = str(config["selector"]), Path(str(config["gate"]))
    settings = {"state": str(config["state"]), **OPTIONS.get(scheme, {})}
    rounds = getattr(selectors[scheme], "rounds", True)
    inner = FedAvg(fraction_evaluate=0.0)
    server = PacedStrategy(inner, scheme, **settings) if rounds else PacedServer(scheme, **settings)

    (gate / f"began-{server.coordinator.step}").touch()

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        far = float(np.abs(arrays["w"].numpy() - 1.0).max())
        if (gate / "stop").exists():
            raise StoppedError
        return MetricRecord({"accuracy": float(np.exp(-far))})

    try:
        server.start(
            grid=grid,
            initial_arrays=ArrayRecord({"w": Array(np.zeros(WIDTH))}),
            num_rounds=int(config["num-server-rounds"]),
            evaluate_fn=evaluate,
        )
    except StoppedError:
        (gate / "stopped").touch()
