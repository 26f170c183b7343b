"""A warm-up that is not waited for to the end: on the clock, and across checkpoints."""

from __future__ import annotations

from itertools import islice, pairwise

import numpy as np
import pytest

from fedpace import make_selector
from fedpace.data.digits import Digits
from fedpace.delays.lognormal import LognormalDelays
from fedpace.models.builtin import Softmax
from fedpace.sim.checkpoint import Checkpoints
from fedpace.sim.clock import Clock
from fedpace.sim.reclock import depends_on_delays
from fedpace.sim.rounds import Fleet, Simulation
from fedpace.sim.stopping import Stop
from fedpace.sim.training import Training


def simulation(*, wait=0.5, charge=True, selector=None, trains=False):
    return Simulation(
        Digits(clients=12, alpha=0.5),
        Softmax(),
        LognormalDelays(),
        make_selector("pace") if selector is None else selector,
        training=Training(lr=0.5),
        fleet=Fleet(warmup_wait=wait, warmup_trains=trains),
        clock=Clock(charge_warmup=charge),
        seed=4,
    )


def test_the_clock_waits_for_half_and_the_others_are_heard_in_time():
    one = simulation()
    drawn = one.time.delays.draw(0)
    rounds = list(islice(one.rounds(), 1, 40))
    assert rounds[0].overhead == pytest.approx(np.sort(drawn)[5])
    assert len(rounds[0].warmed) == 12
    heard = {client: before.clock for before, now in pairwise(rounds) for client in now.heard}
    late = {client for client in range(12) if drawn[client] > rounds[0].overhead}
    assert heard.keys() <= late
    assert heard, "some answer within the run"
    chosen = {client: one.clock for one in reversed(rounds) for client in one.clients}
    for client, clock in heard.items():
        assert clock >= drawn[client]
        assert client not in chosen or chosen[client] >= drawn[client], "not before it was known"
    unheard = late - heard.keys()
    assert not unheard & chosen.keys()


def test_a_warm_up_that_costs_nothing_is_waited_for():
    rounds = list(islice(simulation(charge=False).rounds(), 4))
    assert rounds == list(islice(simulation(charge=False, wait=1.0).rounds(), 4))


def test_a_warm_up_that_trains_ends_with_half_and_the_others_are_heard_in_time():
    one = simulation(trains=True)
    drawn = one.time.delays.draw(1)
    rounds = list(islice(one.rounds(), 1, 40))
    fast, late = np.argsort(drawn)[:6], np.argsort(drawn)[6:]
    assert rounds[0].clients == tuple(sorted(fast.tolist()))
    assert rounds[0].clock == rounds[0].seconds == pytest.approx(drawn[fast].max())
    assert rounds[0].warmed == tuple(sorted(late.tolist())), "they only measured"
    assert sum(rounds[0].weights) == pytest.approx(0.5), "of the 12 that were asked"
    heard = {client: now.clock for now in rounds for client in now.heard}
    assert heard, "some answer within the run"
    assert heard.keys() <= set(late.tolist())
    first = {client: before.clock for before, now in reversed(list(pairwise(rounds))) for client in now.clients}
    assert all(first.get(client, np.inf) >= drawn[client] for client in late.tolist()), "not before it was known"


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("cut", [1, 4])
def test_a_run_resumes_bit_for_bit_while_clients_are_awaited(tmp_path, cut, trains):
    whole = list(islice(simulation(trains=trains).rounds(), 14))
    first = simulation(trains=trains)
    list(islice(first.rounds(), cut + 1))
    assert any(task.kind == "measure" for task in first.coordinator.tasks)
    Checkpoints(tmp_path).save(first, wall_seconds=0.0)
    second = simulation(trains=trains)
    Checkpoints(tmp_path).restore(second)
    assert list(islice(second.rounds(), 14 - cut - 1)) == whole[cut + 1 :]


def test_such_a_run_cannot_be_clocked_anew():
    options = {"clock": Clock(), "stop": Stop()}
    assert "does not wait for" in depends_on_delays(make_selector("divfl"), fleet=Fleet(warmup_wait=0.5), **options)
    assert depends_on_delays(make_selector("random"), fleet=Fleet(warmup_wait=0.5), **options) is None
