"""pace-async on a table whose fastest clients hold 0.2 % of the data: it must not run away."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import pytest

from fedpace import make_selector
from fedpace.delays.devices import DevicesDelays
from fedpace.models.builtin import Linear
from fedpace.sim.fleet import Fleet
from fedpace.sim.rounds import Simulation
from fedpace.sim.training import Training

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from lib.hard_federations import NaturalTable


@pytest.mark.parametrize(("seed", "lr"), [(0, 0.01), (0, 0.003), (1, 0.01)])
def test_the_loss_never_exceeds_twice_its_start(seed: int, lr: float) -> None:
    """At seed 0 and lr 0.01, the version before reached 380,000,000 times its start."""
    simulation = Simulation(
        NaturalTable(),
        Linear(),
        DevicesDelays(),
        make_selector("pace-async"),
        training=Training(epochs=5, batch=32, lr=lr, arithmetic="numpy"),
        fleet=Fleet(shares="samples"),
        seed=seed,
    )
    losses = [current.metric for current in islice(simulation.rounds(), 81)]
    assert max(losses) < 2 * losses[0]
    assert max(losses[-20:]) < 0.2 * losses[0]
