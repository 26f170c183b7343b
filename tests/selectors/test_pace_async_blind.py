"""pace-async where the clients that answer first know nothing of what the others know: the model must not run away.

What slow clients differ by is remembered, and pushes the model on in directions in which the fast ones feel nothing. It
went 150 times as far as it should, and back, until late answers were asked how far what they said before still holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import numpy as np
import pytest

from fedpace import make_selector
from fedpace.data.federated import FederatedData, Samples
from fedpace.delays.trace import delays_from_array
from fedpace.models.builtin import Linear
from fedpace.sim.rounds import Simulation
from fedpace.sim.training import Training

OPTIMUM = np.array([1.0, -2.0, 0.5, 1.5])
FAST, SLOW = 2, 28


@dataclass(frozen=True)
class OneSided:
    """Linear regression; to the first two clients the last two features are next to constant."""

    name: ClassVar[str] = "one-sided"
    metric: ClassVar[str] = "loss"

    clients: int = FAST + SLOW
    knowing: float = 0.05

    def build(self, *, seed):
        rng = np.random.default_rng(seed)

        def draw(count, own, *, blind):
            inputs = rng.normal(size=(count, 4))
            if blind:
                inputs[:, 2:] *= self.knowing
            targets = inputs @ (OPTIMUM + own) + 0.5 * rng.normal(size=count)
            return Samples(inputs.astype(np.float32), targets.astype(np.float32))

        train = tuple(draw(24, 0.3 * rng.normal(size=4), blind=client < FAST) for client in range(self.clients))
        return FederatedData(self.name, train, draw(600, 0.0, blind=False), None, "loss")


@pytest.mark.parametrize("seed", [0, 2, 7])
def test_the_model_does_not_run_away_where_the_fast_feel_nothing(seed):
    simulation = Simulation(
        OneSided(),
        Linear(),
        delays_from_array([1.0] * FAST + [8.0 + 0.2 * client for client in range(SLOW)]),
        make_selector("pace-async"),
        training=Training(epochs=5, batch=8, lr=0.1),
        seed=seed,
    )
    losses = [current.metric for current in islice(simulation.rounds(), 61)]
    plateau = 0.134
    assert losses[0] > 3.5
    assert max(losses) < 2 * losses[0]
    assert max(losses[30:]) < 3 * plateau
    assert np.mean(losses[-20:]) < 1.1 * plateau
