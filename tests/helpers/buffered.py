"""Training without rounds: a policy as small as one can be, runs of it, and what makes it FedAvg."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice
from typing import ClassVar

import numpy as np
import pytest
import torch

from fedpace import Need, make_selector
from fedpace.core.tasks import Apply, Move, Wait
from fedpace.core.types import Traits
from fedpace.data.quadratic import Quadratic
from fedpace.delays.constant import ConstantDelays
from fedpace.delays.lognormal import LognormalDelays
from fedpace.models.builtin import Linear
from fedpace.sim.rounds import Fleet, Simulation
from fedpace.sim.training import Training


@dataclass(frozen=True)
class Buffered(Traits):
    """FedBuff (Nguyen et al. 2022): everybody is busy; every `buffer` answers make a step, older ones counting less."""

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


def quadratic_run(policy, delays=None, *, clients, **options):
    """Return a small run of least squares."""
    return Simulation(
        Quadratic(clients=clients, samples=12, test_samples=10, dimension=5),
        Linear(),
        delays or LognormalDelays(jitter=0.3),
        policy,
        training=Training(epochs=2, batch=6, lr=0.02),
        seed=3,
        **options,
    )


def check_it_is_fedavg(policy, *, clients, shares):
    """Check that a policy which waits for all of `clients`, who take equally long, does what FedAvg does."""
    fleet = Fleet(shares=shares)
    ours = quadratic_run(policy, ConstantDelays(), clients=clients, fleet=fleet)
    plain = quadratic_run(make_selector("random", k=clients), ConstantDelays(), clients=clients, fleet=fleet)
    pairs = list(zip(islice(ours.rounds(), 6), islice(plain.rounds(), 6), strict=True))
    for one, other in pairs:
        assert (one.clock, one.clients, one.seconds) == (other.clock, other.clients, other.seconds)
        assert one.metric == pytest.approx(other.metric, rel=1e-6)
    torch.testing.assert_close(ours.parameters, plain.parameters, rtol=1e-6, atol=1e-7)
    return pairs


def by_definition(rule, steps, *, clients):
    """Play with everybody at work, by a loop that knows nothing of fedpace's own; yield clock, answers and model.

    `rule` has a `buffer`, the answers that make a step, and a `step` from the model and the answers to the next model.
    An answer is a client, how many steps old the model is that it was given, that model, and the trained one.
    """
    one = quadratic_run(make_selector("random", k=1), clients=clients)
    model, version, events = one.trainer.initial, 0, []
    jobs, held = [0] * clients, []

    def begin(client, now):
        seconds = one.time.delays.draw(jobs[client] + 1)[client]
        heappush(events, (now + seconds, client, version, jobs[client], model))
        jobs[client] += 1

    for client in range(clients):
        begin(client, 0.0)
    while version < steps:
        now, client, received, job, start = heappop(events)
        trained = one.trainer.train(start, client, job).parameters
        held.append((client, version - received, start.double().numpy(), trained.double().numpy()))
        if len(held) == rule.buffer:
            model = torch.from_numpy(rule.step(model.double().numpy(), held)).float()
            version += 1
            yield now, held, model
            held = []
        begin(client, now)
