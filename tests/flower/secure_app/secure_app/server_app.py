"""A server that trains under SecAgg+ and writes what happened into `gate/history.json` after every round."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedpace.flower import SecureRounds
from secure_app.client_app import WIDTH

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train round by round, and write the history."""
    config = context.run_config
    gate = Path(str(config["gate"]))
    while len(list(grid.get_node_ids())) < int(config["nodes"]):
        time.sleep(1.0)
    secure = SecureRounds("pace", minimum=3, timeout=60.0)
    arrays, models = ArrayRecord({"w": Array(np.zeros(WIDTH, dtype=np.float32))}), []
    for number in range(1, int(config["num-server-rounds"]) + 1):
        arrays = secure.start(grid, arrays, rounds=number)
        models.append(arrays["w"].numpy().tolist())
        content = {"history": secure.history, "models": models}
        (gate / "history.part").write_text(json.dumps(content))
        (gate / "history.part").rename(gate / "history.json")
    (gate / "finished").touch()
