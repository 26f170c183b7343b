"""FedAsync and CA2FL against their definitions: whole runs against a loop that knows nothing of fedpace's own."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch
from buffered import by_definition, check_it_is_fedavg, quadratic_run
from resuming import check_resumes

from fedpace import make_selector
from fedpace._base.errors import InputError
from fedpace.delays.availability import Availability
from fedpace.delays.constant import ConstantDelays
from fedpace.delays.lognormal import LognormalDelays
from fedpace.selectors.ca2fl import Ca2fl
from fedpace.selectors.fedasync import Fedasync

CLIENTS = 8


def simulation(policy, delays=None, *, clients=CLIENTS, **options):
    return quadratic_run(policy, delays, clients=clients, **options)


class ByFedasync:
    """x <- (1 - a) x + a x_i."""

    buffer = 1

    def __init__(self, alpha, discount):
        self.alpha, self.discount = alpha, discount

    def step(self, model, held):
        ((_, lag, _, trained),) = held
        a = self.alpha * self.discount(lag)
        return (1 - a) * model + a * trained


class ByCa2fl:
    """v = h + 1/K sum (u_i - h_i)."""

    def __init__(self, buffer, lr):
        self.buffer, self.lr = buffer, lr
        self.last = np.zeros((CLIENTS, 5))

    def step(self, model, held):
        v = self.last.mean(axis=0) + sum(t - s - self.last[c] for c, _, s, t in held) / self.buffer
        for client, _, start, trained in held:
            self.last[client] = trained - start
        return model + self.lr * v


HINGE = {"discount": "hinge", "slope": 2.0, "tolerated": 3}
RUNS = [
    ("fedasync", {}, ByFedasync(0.6, lambda lag: (1 + lag) ** -0.5)),
    ("fedasync", {"alpha": 0.9, "power": 1.0}, ByFedasync(0.9, lambda lag: 1 / (1 + lag))),
    ("fedasync", {"alpha": 0.3, "discount": "constant"}, ByFedasync(0.3, lambda lag: 1.0)),
    ("fedasync", HINGE, ByFedasync(0.6, lambda lag: 1.0 if lag <= 3 else 1 / (2.0 * (lag - 3) + 1))),
    ("ca2fl", {"buffer": 3}, ByCa2fl(3, 1.0)),
    ("ca2fl", {"buffer": 1, "lr": 0.4}, ByCa2fl(1, 0.4)),
    ("ca2fl", {"buffer": 12, "lr": 0.7}, ByCa2fl(12, 0.7)),
]


@pytest.mark.parametrize(("name", "options", "rule"), RUNS, ids=[f"{name} {options}" for name, options, _ in RUNS])
def test_whole_runs_follow_the_definition(name, options, rule):
    one = simulation(make_selector(name, **options))
    rounds = one.rounds()
    next(rounds)
    lags = []
    for clock, held, model in by_definition(rule, 40 if rule.buffer == 1 else 15, clients=CLIENTS):
        current = next(rounds)
        assert current.clock == pytest.approx(clock)
        assert sorted(current.clients) == sorted(client for client, *_ in held)
        lags.append(max(lag for _, lag, *_ in held))
        assert current.facts["largest lag"] == lags[-1]
        torch.testing.assert_close(one.parameters, model, rtol=1e-5, atol=1e-6)
    assert len(set(lags)) > 2, "otherwise nothing was tested"


@pytest.mark.parametrize("shares", ["uniform", "samples"])
def test_ca2fl_with_a_buffer_of_all_is_fedavg_where_all_take_equally_long(shares):
    """What is cached cancels, whatever it is: the second step and later ones have a full cache."""
    check_it_is_fedavg(make_selector("ca2fl", buffer=CLIENTS), clients=CLIENTS, shares=shares)


def test_fedasync_that_keeps_nothing_is_fedavg_of_one_client():
    options = {"clients": 1, "delays": ConstantDelays()}
    ours = simulation(make_selector("fedasync", alpha=1.0), **options)
    plain = simulation(make_selector("random", k=1), **options)
    for one, other in zip(islice(ours.rounds(), 6), islice(plain.rounds(), 6), strict=True):
        assert (one.clock, one.metric, one.weights) == (other.clock, other.metric, other.weights)
    assert torch.equal(ours.parameters, plain.parameters)


def test_shares_count_in_fedasync_and_never_more_than_everything():
    policy = Fedasync(alpha=0.6, discount="constant")
    np.testing.assert_allclose(policy.weigh(np.zeros(3, int), np.array([0.5, 1.0, 4.0])), [0.3, 0.6, 1.0])


@pytest.mark.parametrize("name", ["fedasync", "ca2fl"])
def test_no_more_than_asked_are_at_work_whoever_crashes(name):
    availability = Availability(on=3.0, off=2.0, crash=0.3)
    one = simulation(make_selector(name, in_flight=3), availability=availability)
    played, seen = [], set()
    for current in islice(one.rounds(), 120 if name == "fedasync" else 25):
        assert len(one.coordinator.tasks) <= 3
        played.append(current)
        seen.update(current.clients)
    assert sum(len(current.failed) for current in played) > 5
    assert seen == set(range(CLIENTS))
    assert played[-1].metric < 0.5 * played[0].metric


@pytest.mark.parametrize("delays", [LognormalDelays(jitter=0.3), ConstantDelays()], ids=["apart", "together"])
@pytest.mark.parametrize(("name", "options"), [("fedasync", {}), ("ca2fl", {"buffer": 3})])
def test_they_resume_bit_for_bit(tmp_path, name, options, delays):
    check_resumes(tmp_path, lambda: simulation(make_selector(name, **options), delays), 7)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Fedasync(alpha=0.0), "alpha of fedasync"),
        (lambda: Fedasync(alpha=1.1), "alpha of fedasync"),
        (lambda: Fedasync(in_flight=-1), "in_flight of fedasync"),
        (lambda: Fedasync(discount="linear"), "discount of fedasync"),
        (lambda: Fedasync(power=-1.0), "power of fedasync"),
        (lambda: Fedasync(slope=float("nan")), "slope of fedasync"),
        (lambda: Fedasync(tolerated=-1), "tolerated of fedasync"),
        (lambda: Ca2fl(buffer=0), "buffer of ca2fl"),
        (lambda: Ca2fl(in_flight=-1), "in_flight of ca2fl"),
        (lambda: Ca2fl(lr=0.0), "lr of ca2fl"),
    ],
)
def test_senseless_options_are_refused(make, said):
    with pytest.raises(InputError, match=said):
        make()
