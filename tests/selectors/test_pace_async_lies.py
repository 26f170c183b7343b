"""pace-async where the fastest clients all claim one moment: their distances say nothing, and stop nobody."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from fedpace import make_selector
from fedpace.data.digits import Digits
from fedpace.delays.lognormal import LognormalDelays
from fedpace.models.softmax import Softmax
from fedpace.sim.clients import Clients
from fedpace.sim.fleet import Fleet
from fedpace.sim.rounds import Simulation
from fedpace.sim.training import Training

CLIENTS, LIARS, STEPS = 30, 6, 12


@pytest.mark.parametrize("added", [0.0, 1e-4])
def test_clients_that_claim_the_same_moment_make_no_step_wait_for_everybody(added, monkeypatch):
    """Exactly the same, so that only rounding tells them apart, or nearly."""
    made = Simulation(
        Digits(clients=CLIENTS, alpha=2.0),
        Softmax(),
        LognormalDelays(),
        make_selector("pace-async"),
        training=Training(epochs=5, batch=16, lr=0.3),
        fleet=Fleet(trust=True),
        seed=100,
    )
    fastest = set(np.argsort(made.expected_delays)[:LIARS].tolist())
    everybody = list(range(CLIENTS))
    mean = np.vstack(list(made.clients._engine.moments(made.parameters, everybody, targets=True))) / np.sqrt(CLIENTS)
    report = Clients._report

    def lie(self, tasks, losses, updates, model):
        report(self, tasks, losses, updates, model)
        for task in tasks:
            told = self._outcomes.get(task.id)
            if task.client in fastest and told is not None and told.moment is not None:
                claimed = mean * (1 + added * (1 + task.client))
                self._outcomes[task.id] = replace(told, moment=claimed)

    monkeypatch.setattr(Clients, "_report", lie)
    clocks = [each.clock for each in islice(made.rounds(), STEPS)]
    slowest = float(np.sort(made.expected_delays)[-3:].min())
    assert clocks[-1] < slowest, "so many steps were made before the slowest clients were heard once"
