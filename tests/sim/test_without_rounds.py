"""Policies without rounds in the simulator: stale answers, several versions in flight, checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import numpy as np
import pytest
import torch

from fedpace import Need, make_selector
from fedpace.core.tasks import Apply, Move, Wait
from fedpace.core.types import Traits
from fedpace.data.quadratic import Quadratic
from fedpace.delays.lognormal import LognormalDelays
from fedpace.models.linear import Linear
from fedpace.sim.checkpoint import Checkpoints
from fedpace.sim.rounds import Simulation
from fedpace.sim.training import Training

CLIENTS = 8


@dataclass(frozen=True)
class Buffered(Traits):
    """FedBuff (Nguyen et al. 2022): everybody is busy, and every `buffer` answers make a step."""

    name: ClassVar[str] = "buffered"
    needs: ClassVar[frozenset[Need]] = frozenset()
    rounds: ClassVar[bool] = False

    buffer: int = 3
    stale: float = 0.5
    eager: bool = True
    """Whether who has answered begins anew at once, and not with the next step."""

    def init(self):
        return None

    def probe(self, state, view, rng):
        return None

    def decide(self, state, view, rng):
        hand, apply = view.in_hand, None
        if len(hand) >= self.buffer:
            apply = Apply(hand.ids, (1.0 + view.step - hand.step) ** -self.stale / self.buffer, "delta")
        held = 0 if apply else len(hand)
        start = view.candidates
        wait = Wait(answers=held + 1) if self.eager else Wait(answers=self.buffer)
        return Move(start, np.zeros(start.size), apply=apply, wait=wait, mode="delta"), None

    def observe(self, state, report):
        return None


def simulation(policy, **options):
    return Simulation(
        Quadratic(clients=CLIENTS, samples=12, test_samples=10, dimension=5),
        Linear(),
        LognormalDelays(),
        policy,
        training=Training(epochs=2, batch=6, lr=0.02),
        seed=3,
        **options,
    )


def test_waiting_for_everybody_is_fedavg():
    """The check that every implementation must pass: buffer = in flight = the cohort, nothing stale."""
    buffered = list(islice(simulation(Buffered(buffer=CLIENTS, eager=False)).rounds(), 5))
    averaged = list(islice(simulation(make_selector("random", k=CLIENTS)).rounds(), 5))
    for one, other in zip(buffered, averaged, strict=True):
        assert one.metric == pytest.approx(other.metric, rel=1e-5)
        assert one.clock == pytest.approx(other.clock)
        assert one.clients == other.clients


def test_clients_answer_at_their_own_times_and_from_their_own_versions():
    one = simulation(Buffered(stale=0.0))
    drawn = [one.time.delays.draw(turn) for turn in range(1, 40)]
    rounds = list(islice(one.rounds(), 12))
    times = [sorted((sum(drawn[job][c] for job in range(count + 1)), c) for count in range(39)) for c in range(CLIENTS)]
    events = sorted(event for own in times for event in own)
    for number, current in enumerate(rounds[1:]):
        buffer = events[3 * number : 3 * number + 3]
        assert current.clock == pytest.approx(buffer[-1][0])
        assert sorted(current.clients) == sorted(client for _, client in buffer)
    assert rounds[-1].metric < 0.5 * rounds[0].metric
    assert len(one.models) > 1, "versions that clients in flight were given are kept"
    assert set(one.models) == {*one.coordinator.flight.versions, one.coordinator.step}


@pytest.mark.parametrize("cut", [1, 5])
def test_it_resumes_bit_for_bit_with_tasks_in_flight(tmp_path, cut):
    whole = simulation(Buffered())
    expected = list(islice(whole.rounds(), 12))
    first = simulation(Buffered())
    list(islice(first.rounds(), cut + 1))
    Checkpoints(tmp_path).save(first, wall_seconds=0.0)
    second = simulation(Buffered())
    Checkpoints(tmp_path).restore(second)
    assert list(islice(second.rounds(), 11 - cut)) == expected[cut + 1 :]
    assert torch.equal(second.parameters, whole.parameters)
