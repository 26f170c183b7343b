"""A network that slows down for all: deadlines that were learnt before it must not stall training."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import pytest

from fedpace import make_selector
from fedpace.data.digits import Digits
from fedpace.delays.nycmesh import NycmeshDelays
from fedpace.models.builtin import Softmax
from fedpace.sim.rounds import Fleet, Simulation
from fedpace.sim.training import Training

AFTER = 20


@dataclass(frozen=True)
class FourTimesSlower:
    """Another delay model, four times as slow after some rounds, without the expected delays saying so."""

    name: ClassVar[str] = "four-times-slower"

    inner: Any

    def build(self, clients: int, *, model_bytes: int, seed: int) -> SlowedDown:
        return SlowedDown(self.inner.build(clients, model_bytes=model_bytes, seed=seed))


@dataclass(frozen=True)
class SlowedDown:
    inner: Any

    def expected(self):
        return self.inner.expected()

    def draw(self, step):
        return self.inner.draw(step) * (4.0 if step > AFTER else 1.0)


@pytest.mark.parametrize("known", ["expected", "observed"])
def test_rounds_go_on_after_a_slow_down(known):
    simulation = Simulation(
        Digits(clients=60, alpha=0.3),
        Softmax(),
        FourTimesSlower(NycmeshDelays()),
        make_selector("pace"),
        training=Training(epochs=5, batch=16, lr=1.0),
        fleet=Fleet(delays=known),
        seed=100,
    )
    rounds = list(islice(simulation.rounds(), 1, 50))
    arrived = [
        sum(w for c, w in zip(one.clients, one.weights, strict=True) if c not in one.failed) / sum(one.weights)
        for one in rounds
    ]
    assert any(one.failed for one in rounds[:AFTER]), "deadlines were at work before"
    slow = np.array(arrived[AFTER:])
    assert (slow < 0.5).sum() <= 3, "a deadline that few met makes the next one longer at once"
    assert slow[5:].mean() > 0.8
