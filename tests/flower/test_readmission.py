"""A Flower server that excluded a client asks it again when somebody requests it, between rounds or between starts."""

from __future__ import annotations

import numpy as np
import pytest
from flower_fleet import fleet
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg
from typer.testing import CliRunner

from fedpace.cli import app
from fedpace.flower import PacedServer, PacedStrategy
from fedpace.records.influence import Influence
from fedpace.records.run import read_run


def trained(model):
    """The server's own step, towards where all honest clients go."""
    return {key: array + np.float32(0.3) * (np.float32(1.0) - array) for key, array in model.items()}


@pytest.mark.parametrize("own", [False, True], ids=["strategy", "server"])
def test_a_restarted_server_carries_out_a_request(flower, tmp_path, own):
    apps = {client: flower.app(target=-9.0 if client == 5 else 1.0) for client in range(6)}
    options = {"k": 6, "clock": "reported", "state": tmp_path, "robust": "fltrust", "validation": trained}

    def server():
        return PacedServer("random", **options) if own else PacedStrategy(FedAvg(), "random", **options)

    first = server()
    model = first.start(fleet(flower, apps=apps), flower.arrays([0.0, 0.5]), num_rounds=6).arrays
    assert isinstance(model, ArrayRecord)
    assert np.all(model["w0"].numpy() > 0.5), "the client that goes elsewhere did not move it"
    (liar,) = first.coordinator.excluded
    assert list(Influence(read_run(tmp_path).rounds).excluded) == [liar]
    done = CliRunner().invoke(app, ["readmit", str(tmp_path), liar])
    assert done.exit_code == 0, done.output
    second = server()
    assert not second.coordinator.excluded
    second.start(fleet(flower, apps=apps), flower.arrays([0.0, 0.5]), num_rounds=7)
    rounds = read_run(tmp_path).rounds
    assert [liar in current.clients for current in rounds[-2:]] == [False, True]
    assert not list(tmp_path.glob("readmit-*"))
