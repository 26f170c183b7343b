"""Honest clients do not feel that they are bounded: where no bound binds, runs are the same to the last bit."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from fedpace import make_selector
from fedpace.data.quadratic import Quadratic
from fedpace.delays.lognormal import LognormalDelays
from fedpace.models.builtin import Linear
from fedpace.records.run import round_line
from fedpace.sim.fleet import Fleet
from fedpace.sim.rounds import Simulation
from fedpace.sim.training import Training

CLIENTS = 16
SCHEMES = {
    "random": {"k": 6},
    "pace": {},
    "oort": {"k": 6},
    "power-of-choice": {"k": 6},
    "fedbuff": {"buffer": 6},
    "ca2fl": {"buffer": 6},
    "pace-async": {},
}
BOUND = ("clipped", "capped", "corrected", "excluded", "left out", "failures")


def played(scheme, arithmetic, *, trust, clip=10.0, rounds=6):
    simulation = Simulation(
        Quadratic(clients=CLIENTS, samples=20, test_samples=10, dimension=8),
        Linear(),
        LognormalDelays(),
        make_selector(scheme, **SCHEMES[scheme]),
        training=Training(lr=0.01, epochs=2, batch=0, arithmetic=arithmetic),
        fleet=Fleet(trust=trust, delays="observed"),  # claimed delays of late clients would be corrected
        seed=5,
    )
    simulation.coordinator.ledger.trust.clip = clip
    found = list(islice(simulation.rounds(), rounds + 1))
    return found, np.asarray(simulation.parameters)


@pytest.mark.parametrize("arithmetic", ["torch", "numpy"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_where_no_bound_binds_the_run_is_the_same_to_the_last_bit(scheme, arithmetic):
    (off, expected), (on, model) = (played(scheme, arithmetic, trust=trust) for trust in (False, True))
    assert not any(name in current.facts for current in on for name in BOUND), "in this run no bound binds"
    for before, now in zip(off, on, strict=True):
        assert round_line(replace(now, facts={})) == round_line(replace(before, facts={}))
    np.testing.assert_array_equal(model, expected)


def test_a_bound_that_binds_is_recorded_and_felt():
    """So that the comparison above can fail."""
    (off, expected), (on, model) = (played("random", "numpy", trust=trust, clip=0.5) for trust in (False, True))
    assert not any("clipped" in current.facts for current in off)
    assert any("clipped" in current.facts for current in on)
    assert not np.array_equal(model, expected)
