"""REFL against its definition: weights by hand, and whole runs against a loop that knows nothing of fedpace's own."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
import pytest
import torch
from resuming import check_resumes

from fedpace import Session, make_selector
from fedpace._base.errors import InputError
from fedpace.core.types import InFlight
from fedpace.data.quadratic import Quadratic
from fedpace.delays.availability import Availability
from fedpace.delays.lognormal import LognormalDelays
from fedpace.models.builtin import Linear
from fedpace.selectors.refl import Begun, Refl
from fedpace.sim.clock import Clock
from fedpace.sim.rounds import Simulation
from fedpace.sim.training import Training

CLIENTS = 8


def simulation(policy, **options):
    return Simulation(
        Quadratic(clients=CLIENTS, samples=12, test_samples=10, dimension=5),
        Linear(),
        LognormalDelays(jitter=0.3),
        policy,
        training=Training(epochs=2, batch=6, lr=0.02, sketch=0),
        seed=3,
        **options,
    )


def hand(clients, steps, updates):
    count = len(clients)
    return InFlight(
        np.arange(count), np.array(clients), np.zeros(count), np.array(steps), np.zeros(count), lambda: updates
    )


# -- weights by hand ---------------------------------------------------------------------------------------


def weights(view, policy, clients, steps, updates, **changes):
    shown = view(6, step=5, in_hand=hand(clients, steps, updates), **changes)
    move, state = policy.decide(Begun(5), shown, np.random.default_rng(0))
    assert state == Begun(6)
    assert move.apply.mode == "average"
    np.testing.assert_array_equal(move.apply.ids, np.arange(len(clients)))
    assert move.apply.weights.sum() == pytest.approx(1)
    return move.apply.weights


def test_late_answers_weigh_as_the_paper_says(view):
    # Fresh ones average (1, 0): the late are 4 and 1 from it, squared, so that r / r_max = 1 and 1/4.
    updates = np.array([[1.0, 2.0], [1.0, -2.0], [1.0, 2.0], [0.0, 0.0]])
    got = weights(view, Refl(k=2), [0, 1, 2, 3], [5, 5, 4, 2], updates)
    raw = [1.0, 1.0, 0.65 / 2 + 0.35 * (1 - math.exp(-1)), 0.65 / 4 + 0.35 * (1 - math.exp(-0.25))]
    np.testing.assert_allclose(got, np.array(raw) / sum(raw), rtol=1e-12)


def test_shares_multiply_weights_and_make_the_fresh_mean(view):
    share = np.array([0.3, 0.1, 0.2, 0.1, 0.2, 0.1])
    updates = np.array([[2.0], [-2.0], [3.0], [-1.0]])  # the mean of the fresh is 1: squares of 4 and 4
    got = weights(view, Refl(k=2, beta=0.5), [0, 1, 2, 3], [5, 5, 4, 4], updates, share=share)
    late = 0.5 / 2 + 0.5 * (1 - math.exp(-1))
    raw = np.array([0.3, 0.1, 0.2 * late, 0.1 * late])
    np.testing.assert_allclose(got, raw / raw.sum(), rtol=1e-12)


@pytest.mark.parametrize("updates", [None, np.array([[1.0], [1.0], [1.0]]), np.array([[1.0], [1.0], [np.nan]])])
def test_without_anything_to_compare_only_the_lag_counts(view, updates):
    got = weights(view, Refl(k=2), [0, 1, 2], [5, 5, 3], updates)
    np.testing.assert_allclose(got, np.array([1, 1, 0.65 / 3]) / (2 + 0.65 / 3))


def test_late_answers_alone_make_a_step_by_their_lags(view):
    np.testing.assert_allclose(weights(view, Refl(k=2), [0, 1], [4, 3], np.ones((2, 2))), [0.6, 0.4])


def test_nobody_answered(view):
    move, _ = Refl(k=2).decide(Begun(5), view(6, step=5), np.random.default_rng(0))
    assert move.apply.ids.size == 0
    assert move.start.size == 3


def test_reports_are_not_asked_for_where_nothing_is_late(view):
    def never():
        raise AssertionError("a simulator would train now")

    fresh = InFlight(np.arange(2), np.arange(2), np.zeros(2), np.full(2, 5), np.zeros(2), never)
    move, _ = Refl(k=2).decide(Begun(5), view(6, step=5, in_hand=fresh), np.random.default_rng(0))
    np.testing.assert_array_equal(move.apply.weights, [0.5, 0.5])


# -- runs --------------------------------------------------------------------------------------------------


def by_definition(k, rounds, beta=0.35):
    """Play REFL among clients that are all asked whenever they are idle; return clocks, answers and models."""
    one = simulation(make_selector("random", k=1))
    trainer, model = one.trainer, one.trainer.initial.double()
    jobs, busy, now = [0] * CLIENTS, {}, 0.0
    played = []
    for number in range(rounds):
        for client in range(CLIENTS):
            if client not in busy:
                seconds = one.time.delays.draw(jobs[client] + 1)[client]
                busy[client] = (now + seconds, number, model, jobs[client])
                jobs[client] += 1
        fresh = sorted(when for when, version, _, _ in busy.values() if version == number)
        now = fresh[min(k, len(fresh)) - 1]
        here = {client: task for client, task in busy.items() if task[0] <= now}
        updates = {}
        for client, (_, _, received, job) in here.items():
            start = received.float()
            updates[client] = (trainer.train(start, client, job).parameters - start).double().numpy()
            del busy[client]
        mean = np.mean([updates[client] for client, task in here.items() if task[1] == number], axis=0)
        apart = {client: ((updates[client] - mean) ** 2).sum() for client, task in here.items() if task[1] < number}
        raw = {}
        for client, (_, version, _, _) in here.items():
            lag = number - version
            unlike = 1 - math.exp(-apart[client] / max(apart.values())) if lag else 0.0
            raw[client] = (1 - beta) / (lag + 1) + beta * unlike if lag else 1.0
        total = sum(raw.values())
        model = model + sum(raw[client] / total * torch.from_numpy(updates[client]) for client in here)
        played.append((now, {client: weight / total for client, weight in raw.items()}, model.clone()))
    return played


def test_whole_runs_follow_the_definition():
    one = simulation(make_selector("refl", k=5, overcommit=2.0))
    rounds = one.rounds()
    next(rounds)
    late = 0
    for clock, raw, model in by_definition(5, 12):
        current = next(rounds)
        assert current.clock == pytest.approx(clock)
        assert dict(zip(current.clients, current.weights, strict=True)) == pytest.approx(raw, rel=1e-4)
        assert current.facts == {"late": len(raw) - 5, "fresh": 5}
        torch.testing.assert_close(one.parameters, model.float(), rtol=1e-4, atol=1e-6)
        late += len(raw) - 5
    assert late > 5, "otherwise nothing was tested"


def test_waiting_for_everybody_is_fedavg():
    ours = simulation(make_selector("refl", k=CLIENTS))
    plain = simulation(make_selector("random", k=CLIENTS))
    for one, other in zip(islice(ours.rounds(), 6), islice(plain.rounds(), 6), strict=True):
        assert (one.metric, one.clock, one.clients, one.weights) == (
            other.metric,
            other.clock,
            other.clients,
            other.weights,
        )
        assert one.seconds == pytest.approx(other.seconds)
    assert torch.equal(ours.parameters, plain.parameters)


def test_no_task_is_trained_twice_and_no_client_has_two():
    one = simulation(make_selector("refl", k=2, overcommit=2.0))
    trained = []

    def counting(train):
        def call(model, clients, *rest):
            trained.extend(clients)
            return train(model, clients, *rest)

        return call

    one.engine.train, one.engine.train_from = counting(one.engine.train), counting(one.engine.train_from)
    rounds = one.rounds()
    applied = 0
    for current in islice(rounds, 31):
        applied += len(current.clients)
        flying = [task.client for task in one.coordinator.tasks]
        assert len(flying) == len(set(flying))
        assert not one.clients._results, "models are kept for their step, and no longer"
    assert len(trained) == applied
    assert set(one.models) == {*one.coordinator.task_table.versions, one.coordinator.step}


def test_the_host_ends_rounds_too_and_the_late_still_count():
    one = simulation(make_selector("refl", k=6), clock=Clock(deadline=15.0))
    played = list(islice(one.rounds(), 21))[1:]
    assert any(current.seconds == pytest.approx(15.0) for current in played)
    assert all(current.facts["fresh"] >= 1 for current in played)
    assert sum(current.facts["late"] for current in played) > 5
    own = simulation(make_selector("refl", k=6, deadline=15.0))
    assert list(islice(own.rounds(), 21))[1:] == played, "whoever sets it"


def test_rounds_end_when_all_who_are_asked_have_crashed():
    one = simulation(make_selector("refl", k=2), availability=Availability(crash=0.6))
    played = list(islice(one.rounds(), 30))
    assert any(current.failed for current in played)
    assert any(current.number and len(current.failed) == len(current.clients) for current in played)
    assert played[-1].metric < played[0].metric


@pytest.mark.parametrize("cut", [1, 2, 7])
def test_it_resumes_bit_for_bit(tmp_path, cut):
    make = lambda: simulation(make_selector("refl", k=2, overcommit=2.0), availability=Availability(on=3, off=1))  # noqa: E731
    assert check_resumes(tmp_path, make, cut + 1), "somebody is late"


# -- options -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"k": 0}, "k of refl"),
        ({"overcommit": 0.9}, "overcommit of refl"),
        ({"overcommit": math.inf}, "overcommit of refl"),
        ({"beta": 1.1}, "beta of refl"),
        ({"deadline": 0.0}, "deadline of refl"),
    ],
)
def test_senseless_options_are_refused(options, said):
    with pytest.raises(InputError, match=said):
        Refl(**options)


def test_a_session_for_rounds_refuses_it():
    with pytest.raises(InputError, match="refl works without rounds"):
        Session(Refl())
