"""SecAgg+ on a real federation on loopback: `pace` selects, and a SuperNode is killed while it trains."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from federations import Federation, start_quickly, stop, wait_for

pytestmark = [pytest.mark.flower, pytest.mark.slow]

APP = Path(__file__).resolve().parent / "secure_app"
NODES = 6


def test_pace_under_secagg_with_a_node_killed_at_work(tmp_path):
    gate = tmp_path / "gate"
    gate.mkdir()

    def history():
        path = gate / "history.json"
        return json.loads(path.read_text()) if path.exists() else {"history": [], "models": []}

    with Federation(tmp_path / "federation", app=APP) as federation:
        start_quickly(federation)
        federation.superlink()
        nodes = {partition: federation.supernode(partition, NODES) for partition in range(NODES)}
        (gate / "hold-5").touch()  # the first round has everybody
        run = federation.launch(gate=str(gate), nodes=NODES, num_server_rounds=2)
        wait_for((gate / "held-5").exists, federation, run)
        stop(nodes[5], hard=True)
        (gate / "hold-5").unlink()
        wait_for(lambda: len(history()["history"]) >= 1, federation, run)
        first = history()
        assert len(first["history"][0]["failed"]) == 1
        assert first["history"][0]["moved"]
        # The mean of the five that are left: the sum was restored without the mask of the dead one.
        assert np.allclose(first["models"][0], 0.3 * np.mean(range(5)), atol=1e-3)
        (gate / "go").touch()
        wait_for((gate / "finished").exists, federation, run)
        assert len(history()["history"]) == 2
