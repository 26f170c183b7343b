"""Pisces against its definition: whom it chooses, when it steps and with what weights."""

from __future__ import annotations

import math
from heapq import heappop, heappush
from itertools import islice

import numpy as np
import pytest
import torch
from resuming import check_resumes

from fedpace import make_selector
from fedpace._base.errors import InputError
from fedpace.core.types import InFlight, Settled, View
from fedpace.data.quadratic import Quadratic
from fedpace.delays.availability import Availability
from fedpace.delays.constant import ConstantDelays
from fedpace.delays.lognormal import LognormalDelays
from fedpace.models.builtin import Linear
from fedpace.selectors.pisces import Pisces, PiscesState, RecentLags
from fedpace.sim.fleet import Fleet
from fedpace.sim.rounds import Simulation
from fedpace.sim.training import Training

CLIENTS = 8


def simulation(policy, delays=None, **options):
    return Simulation(
        Quadratic(clients=CLIENTS, samples=12, test_samples=10, dimension=5),
        Linear(),
        delays or LognormalDelays(sigma=0.5, jitter=0.3),
        policy,
        training=Training(epochs=2, batch=6, lr=0.02),
        seed=3,
        **options,
    )


def by_definition(steps, staleness):
    """Play Pisces with everybody at work: yield clocks, (client, lag) of the answers, and models."""
    one = simulation(make_selector("random", k=1))
    latency = one.expected_delays
    model, version, last = one.trainer.initial, 0, 0.0
    jobs, events, held, made = [0] * CLIENTS, [], [], 0
    running = {}

    def begin(client, now):
        seconds = one.time.delays.draw(jobs[client] + 1)[client]
        heappush(events, (now + seconds, client))
        running[client] = (version, jobs[client], model)
        jobs[client] += 1

    for client in range(CLIENTS):
        begin(client, 0.0)
    while made < steps:
        due = last + max(latency[list(running)]) / CLIENTS
        if held and due < events[0][0]:
            now, came = due, None
        else:
            now, came = heappop(events)
            received, job, start = running.pop(came)
            update = (one.trainer.train(start, came, job).parameters - start).double().numpy()
            held.append((came, version - received, update))
        if now - last >= max(latency[list(running)]) / CLIENTS - 1e-9:
            weights = np.array([(1 + lag) ** -staleness for _, lag, _ in held])
            weights = weights / weights.sum()
            step = sum(w * u for w, (_, _, u) in zip(weights, held, strict=True))
            model = torch.from_numpy(model.double().numpy() + step).float()
            version, made, last = version + 1, made + 1, now
            yield now, sorted((client, lag) for client, lag, _ in held), model
            held = []
        if came is not None:
            begin(came, now)


@pytest.mark.parametrize("staleness", [0.5, 2.0])
def test_steps_are_paced_by_the_slowest_at_work(staleness):
    one = simulation(make_selector("pisces", in_flight=0, staleness=staleness))
    rounds = one.rounds()
    next(rounds)
    sizes, lags = [], []
    for clock, answers, model in by_definition(20, staleness):
        current = next(rounds)
        assert current.clock == pytest.approx(clock)
        assert sorted(current.clients) == [client for client, _ in answers]
        torch.testing.assert_close(one.parameters, model, rtol=1e-5, atol=1e-6)
        sizes.append(len(answers))
        lags += [lag for _, lag in answers]
    assert len(set(sizes)) > 2, "otherwise pacing was not tested"
    assert max(lags) > 3
    assert max(lags) <= 2 * CLIENTS, "what pacing is for; delays have jitter, so that the bound is not exact"


def view(*, loss, lags, busy=(), samples=None, tried=None, step=7):
    """Eight clients of which some are at work."""
    loss = np.array(loss, dtype=float)
    available = np.ones(loss.size, bool)
    available[list(busy)] = False
    return View(
        step=step,
        now=100.0,
        available=available,
        share=np.full(loss.size, 1 / loss.size),
        delay=np.full(loss.size, 10.0),
        loss=loss,
        loss_step=np.full(loss.size, 3),
        participations=np.full(loss.size, 1) if tried is None else np.array(tried, int),
        samples=None if samples is None else np.array(samples, dtype=float),
        in_flight=InFlight(np.array(busy, int), np.array(busy, int), np.zeros(len(busy)), np.zeros(len(busy), int)),
        accumulated={RecentLags.name: np.array(lags, dtype=float)},
    )


def padded(*lags):
    return [math.nan] * (5 - len(lags)) + list(lags)


def test_places_go_to_those_that_are_useful_and_fresh():
    loss, samples = [1.0, 2.0, 3.0, 4.0, 1.0, 2.0], [10, 10, 10, 10, 40, 10]
    lags = [padded(0), padded(8, 8), padded(1, 2), padded(15), padded(3, 3, 3, 3, 3), padded()]
    seen = view(loss=loss, samples=samples, lags=lags)
    means = np.array([0, 8, 1.5, 15, 3, 0])
    utility = np.array(samples) * loss / np.sqrt(1 + means)
    policy = Pisces(in_flight=3, epsilon=0.0, epsilon_least=0.0)
    np.testing.assert_allclose(policy.utility(seen), utility)
    move, _ = policy.decide(policy.init(), seen, np.random.default_rng(0))
    assert move.start.tolist() == sorted(np.argsort(-utility)[:3].tolist()) == [2, 4, 5]
    without = Pisces(in_flight=3, discount=0.0, epsilon=0.0, epsilon_least=0.0)
    move, _ = without.decide(without.init(), seen, np.random.default_rng(0))
    assert move.start.tolist() == [2, 3, 4], "the stale one counts for its loss alone"
    busy = view(loss=loss, samples=samples, lags=lags, busy=(2, 4))
    move, _ = policy.decide(policy.init(), busy, np.random.default_rng(0))
    assert move.start.tolist() == [5], "one place is free"


def test_a_part_of_the_places_goes_to_clients_not_tried_yet():
    tried = [1] * 10 + [0] * 30
    loss = [5.0] * 10 + [math.nan] * 30
    seen = view(loss=loss, tried=tried, lags=[padded(1)] * 10 + [padded()] * 30)
    policy = Pisces(in_flight=8)
    new = [
        int((policy.decide(PiscesState(0.3), seen, np.random.default_rng(seed))[0].start >= 10).sum())
        for seed in range(200)
    ]
    assert np.mean(new) == pytest.approx(0.3 * 8, abs=0.4)
    everybody = view(loss=[5.0] * 40, lags=[padded(1)] * 40)
    move, _ = policy.decide(PiscesState(0.9), everybody, np.random.default_rng(0))
    assert move.start.size == 8, "where all were tried, all places go by utility"


def test_exploration_decays_with_every_step():
    one = simulation(make_selector("pisces", in_flight=4, epsilon=0.8, epsilon_decay=0.5, epsilon_least=0.25))
    assert [one.coordinator.state.epsilon for _ in islice(one.rounds(), 5)] == [0.8, 0.4, 0.25, 0.25, 0.25]


def test_the_last_five_lags_are_remembered():
    lags, values = RecentLags(), RecentLags().empty(3)
    for number in range(7):
        finished = np.array([True, number < 2])
        settled = Settled(np.array([0, 2]), np.ones(2), np.ones(2), finished, lag=number)
        values = lags.answered(values, settled)
    assert values[0].tolist() == [2, 3, 4, 5, 6]
    assert np.isnan(values[1]).all()
    np.testing.assert_equal(values[2], padded(0, 1))


@pytest.mark.parametrize("shares", ["uniform", "samples"])
def test_it_is_fedavg_where_all_work_and_take_equally_long(shares):
    fleet = Fleet(shares=shares)
    ours = simulation(make_selector("pisces", in_flight=0), ConstantDelays(), fleet=fleet)
    plain = simulation(make_selector("random", k=CLIENTS), ConstantDelays(), fleet=fleet)
    for one, other in zip(islice(ours.rounds(), 6), islice(plain.rounds(), 6), strict=True):
        assert (one.clock, one.clients, one.seconds) == (other.clock, other.clients, other.seconds)
        assert one.weights == pytest.approx(other.weights)
        assert one.metric == pytest.approx(other.metric, rel=1e-6)


def test_it_goes_on_with_crashes_and_absences_and_unknown_delays():
    fleet = Fleet(delays="observed")
    availability = Availability(on=3.0, off=2.0, crash=0.3)
    one = simulation(make_selector("pisces", in_flight=3), availability=availability, fleet=fleet)
    played = []
    for current in islice(one.rounds(), 60):
        assert len(one.coordinator.tasks) <= 3
        played.append(current)
    assert sum(len(current.failed) for current in played) > 5
    assert played[-1].metric < 0.5 * played[0].metric


def test_it_resumes_bit_for_bit(tmp_path):
    check_resumes(tmp_path, lambda: simulation(make_selector("pisces", in_flight=4)), 7)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"in_flight": -1}, "in_flight of pisces"),
        ({"discount": -0.1}, "discount of pisces"),
        ({"staleness": math.inf}, "staleness of pisces"),
        ({"epsilon": 0.1}, "epsilon_least and|epsilon_least <= epsilon"),
        ({"epsilon_decay": 1.5}, "epsilon_decay of pisces"),
    ],
)
def test_senseless_options_are_refused(options, said):
    with pytest.raises(InputError, match=said):
        Pisces(**options)
