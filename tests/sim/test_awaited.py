"""A warm-up that is not waited for to the end: in the session, on the clock, and across checkpoints."""

from __future__ import annotations

import math
from itertools import islice, pairwise

import numpy as np
import pytest

from fedpace import Outcome, Session, make_selector
from fedpace._base.errors import InputError, OrderError
from fedpace.data.digits import Digits
from fedpace.delays.lognormal import LognormalDelays
from fedpace.models.softmax import Softmax
from fedpace.sim.checkpoint import Checkpoints
from fedpace.sim.clock import Clock
from fedpace.sim.reclock import depends_on_delays
from fedpace.sim.rounds import Fleet, Simulation
from fedpace.sim.stopping import Stop
from fedpace.sim.training import Training

MOMENT = np.eye(3)


def session(wait=0.5):
    one = Session(make_selector("moment-match"), warmup_wait=wait)
    one.join(range(4))
    return one


def answer(client, **facts):
    return Outcome(client, seconds=1.0 + client, moment=(1.0 + client) * MOMENT, **facts)


class TestSession:
    """What the host reports, and what is then known."""

    def test_half_is_enough_and_the_others_are_known_when_they_answer(self):
        one = session()
        warmup = one.select()
        assert (warmup.warmup, warmup.quorum) == (True, 2)
        one.observe([answer(0), answer(1), *(Outcome(c, finished=False, late=True) for c in (2, 3))])
        assert not one.warmup_due(), "they were asked"
        for _ in range(3):
            selection = one.select()
            assert set(selection.clients) <= {0, 1}, "neither chosen nor riding along"
            one.observe([answer(client) for client in selection.clients])
        one.observe_late([answer(3)])
        view = one.view()
        assert view.available.tolist() == [True, True, False, True]
        assert view.participations.tolist()[2:] == [0, 1]

    def test_waiting_for_all_is_the_default(self):
        one = Session(make_selector("moment-match"))
        one.join(range(4))
        assert one.select().quorum == 0

    def test_nobody_else_can_be_heard_and_not_in_mid_round(self):
        one = session()
        one.select()
        with pytest.raises(OrderError, match="observe_late"):
            one.observe_late([answer(2)])
        one.observe([answer(0), answer(1), *(Outcome(c, finished=False, late=True) for c in (2, 3))])
        with pytest.raises(InputError, match="client 0 is reported, but it was not late"):
            one.observe_late([answer(0)])

    def test_only_a_warm_up_can_leave_clients_awaited(self):
        one = session()
        one.select()
        with pytest.raises(InputError, match="is late, so"):
            one.observe([answer(0), answer(1), answer(2), answer(3, late=True)])
        one.observe([answer(client) for client in range(4)])
        selection = one.select()
        with pytest.raises(InputError, match="only a warm-up can wait"):
            one.observe([Outcome(client, finished=False, late=True) for client in selection.clients])

    @pytest.mark.parametrize("wait", [0.0, 1.5, -1.0, math.nan])
    def test_the_share_is_checked(self, wait):
        with pytest.raises(InputError, match="warmup_wait"):
            session(wait)

    def test_a_restored_session_still_waits(self, tmp_path):
        one = session()
        one.select()
        one.observe([answer(0), answer(1), *(Outcome(c, finished=False, late=True) for c in (2, 3))])
        one.save(tmp_path / "session")
        back = Session.restore(tmp_path / "session")
        assert back.settings.warmup_wait == 0.5
        back.observe_late([answer(2), answer(3)])
        assert back.view().available.all()


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
