"""pace-async: when it steps, who works, that it goes on whatever happens, and that it holds where it arrives."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from resuming import check_resumes

from fedpace import make_selector
from fedpace._base.errors import InputError
from fedpace.core.types import InFlight, View
from fedpace.data.digits import Digits
from fedpace.data.quadratic import Quadratic
from fedpace.delays.availability import Availability
from fedpace.delays.constant import ConstantDelays
from fedpace.delays.lognormal import LognormalDelays
from fedpace.delays.nycmesh import NycmeshDelays
from fedpace.models.builtin import Linear, Softmax
from fedpace.selectors.pace_async import LATE
from fedpace.sim.fleet import Fleet
from fedpace.sim.rounds import Simulation
from fedpace.sim.training import Training

CLIENTS = 8


def simulation(delays=None, *, options=None, **more):
    return Simulation(
        Quadratic(clients=CLIENTS, samples=12, test_samples=10, dimension=5),
        Linear(),
        delays or LognormalDelays(jitter=0.3),
        make_selector("pace-async", **(options or {})),
        training=Training(epochs=2, batch=6, lr=0.02),
        seed=3,
        **more,
    )


def test_the_first_step_is_fedavg_where_all_take_equally_long():
    ours = simulation(ConstantDelays(), options={"fedexp_exponent": 0.0})
    plain = Simulation(
        Quadratic(clients=CLIENTS, samples=12, test_samples=10, dimension=5),
        Linear(),
        ConstantDelays(),
        make_selector("random", k=CLIENTS),
        training=Training(epochs=2, batch=6, lr=0.02),
        seed=3,
    )
    list(islice(ours.rounds(), 2))
    list(islice(plain.rounds(), 2))
    torch.testing.assert_close(ours.parameters, plain.parameters, rtol=1e-6, atol=1e-7)


def test_everybody_works_all_the_time_and_late_answers_are_heard():
    one = simulation()
    played = list(islice(one.rounds(), 60))
    assert {task.client for task in one.coordinator.tasks} == set(range(CLIENTS))
    assert sum(current.facts["late"] for current in played[1:]) > 5
    assert all(sum(current.weights) == pytest.approx(1.0) for current in played[1:])
    assert all(len(current.clients) == len(current.weights) for current in played)
    assert one.aggregator.state.remembered == CLIENTS
    assert one.aggregator.state.disagreement_left < 1


@pytest.mark.parametrize("cap", [2, 5])
def test_no_more_than_asked_are_at_work(cap):
    one = simulation(options={"in_flight": cap})
    heard = set()
    for current in islice(one.rounds(), 200):
        assert len(one.coordinator.tasks) <= cap
        heard.update(current.clients)
    assert heard == set(range(CLIENTS)), "those that were not heard for long come first"


def test_a_price_on_work_saves_work():
    one = simulation(options={"work_price": 1.0})
    list(islice(one.rounds(), 10))
    assert len(one.coordinator.tasks) < CLIENTS
    free = simulation()
    list(islice(free.rounds(), 10))
    assert len(free.coordinator.tasks) == CLIENTS


def test_it_goes_on_with_crashes_and_absences():
    one = simulation(availability=Availability(on=3.0, off=2.0, crash=0.3))
    played = list(islice(one.rounds(), 40))
    assert sum(len(current.failed) for current in played) > 5
    assert played[-1].metric < 0.5 * played[0].metric


def test_it_works_without_knowing_delays():
    one = simulation(fleet=Fleet(delays="observed"))
    played = list(islice(one.rounds(), 20))
    assert not played[1].warmed
    assert played[-1].metric < 0.5 * played[0].metric


@pytest.mark.parametrize("delays", [LognormalDelays(jitter=0.3), ConstantDelays()], ids=["apart", "together"])
@pytest.mark.parametrize("cut", [1, 6])
def test_it_resumes_bit_for_bit(tmp_path, cut, delays):
    check_resumes(tmp_path, lambda: simulation(delays), cut + 1)


@pytest.mark.parametrize("seed", [100, 101])
def test_it_holds_where_it_arrives(seed):
    """Dirichlet digits under a radio network: the mean of the last steps is as good as the best that was held."""
    one = Simulation(
        Digits(clients=20, alpha=0.3),
        Softmax(),
        NycmeshDelays(),
        make_selector("pace-async"),
        training=Training(epochs=5, batch=16, lr=1.0),
        seed=seed,
    )
    curve = np.array([current.metric for current in islice(one.rounds(), 201)])
    means = np.convolve(curve, np.ones(50) / 50, mode="valid")
    assert means[-1] > 0.9
    assert means[-1] > means.max() - 0.01


@pytest.mark.parametrize("options", [{"in_flight": -1}, {"in_flight": 1.5}, {"fedexp_exponent": 2.0}])
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(InputError, match="pace-async"):
        make_selector("pace-async", **options)


def test_every_step_says_why_where_nobody_starts_with_it():
    played = list(islice(simulation(options={"in_flight": 3, "work_price": 1.0}).rounds(), 40))
    assert all("rho" in current.facts for current in played[1:])


def test_a_wait_never_vanishes_in_the_precision_of_the_clock():
    """The client in flight is late by a rounding error: a wait for it must still move the clock."""
    now, clients = 529.9144174425253, 6
    began = now - 1.0
    delay = np.full(clients, np.nextafter((now - began) / LATE, np.inf))
    assert 0 < LATE * delay[3] - (now - began) < 1e-12
    held = InFlight(
        np.arange(2), np.arange(2), np.full(2, began), np.full(2, 5), np.zeros(2), lambda: np.array([[1.0], [-1.0]])
    )
    flying = InFlight(np.arange(3, 6), np.arange(3, 6), np.full(3, began), np.full(3, 4), np.zeros(3))
    view = View(
        5,
        now,
        np.zeros(clients, dtype=np.bool_),
        np.full(clients, 1 / clients),
        delay=delay,
        loss=np.zeros(clients),
        loss_step=np.zeros(clients, dtype=np.int64),
        participations=np.zeros(clients, dtype=np.int64),
        in_flight=flying,
        in_hand=held,
    )
    scheme = make_selector("pace-async")
    move, _ = scheme.decide(scheme.init(), view, np.random.default_rng(0))
    assert move.apply is None
    assert now + move.wait.seconds > now


def waiting_view(clients, **changes):
    """Return a view at step 9 in which nobody works."""
    return View(
        9,
        100.0,
        np.ones(clients, dtype=np.bool_),
        np.full(clients, 1 / clients),
        **{
            "delay": np.ones(clients),
            "loss": np.zeros(clients),
            "loss_step": np.zeros(clients, dtype=np.int64),
            "participations": np.ones(clients, dtype=np.int64),
            **changes,
        },
    )


def test_clients_take_turns_by_overdue_answers_per_second_of_delay():
    """Client 0 was heard two steps ago and takes 1 s; client 1 five steps ago, and takes 10 s; client 2 is new."""
    view = waiting_view(3, delay=np.array([1.0, 10.0, np.nan]), update_step=np.array([7, 4, -1]))
    scheme = make_selector("pace-async", in_flight=2)
    move, _ = scheme.decide(scheme.init(), view, np.random.default_rng(0))
    assert move.start.tolist() == [0, 2]


@pytest.mark.parametrize(("answers", "more"), [(2, 1), (10, 2), (20, 4)])
def test_where_no_number_of_answers_would_do_it_plans_again_after_a_fifth_more(answers, more):
    clients, rows = 30, np.arange(answers)
    held = InFlight(rows, rows, np.full(answers, 99.0), np.full(answers, 9), np.zeros(answers))
    others = np.arange(answers, clients)
    flying = InFlight(others, others, np.full(others.size, 99.0), np.full(others.size, 9), np.zeros(others.size))
    view = waiting_view(clients, delay=np.full(clients, 50.0), in_hand=held, in_flight=flying)
    view = replace(view, available=np.zeros(clients, dtype=np.bool_))
    scheme = make_selector("pace-async")
    move, state = scheme.decide(replace(scheme.init(), disagreement=1e5), view, np.random.default_rng(0))
    assert move.apply is None
    assert state.plan_at_answers == answers + more
