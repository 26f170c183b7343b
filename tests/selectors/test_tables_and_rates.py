"""ACE, Ringleader, Malenia, Rescaled ASGD, FADAS, momentum approximation and m-synchronous SGD by their definitions.

Whole runs are compared with plain loops that know nothing of fedpace's own.
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush
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
from fedpace.sim.rounds import Fleet

CLIENTS = 8
NEW = ["ace", "ringleader", "malenia", "rescaled-asgd", "fadas", "momentum-approximation", "m-sync"]


def simulation(policy, delays=None, **options):
    return quadratic_run(policy, delays, clients=CLIENTS, **options)


class ByLastUpdates:
    """The mean of all last updates; ACED leaves out old ones."""

    def __init__(self, buffer, lr, max_age=0):
        self.buffer, self.lr, self.max_age = buffer, lr, max_age
        self.last, self.when, self.steps = {}, {}, 0

    def step(self, model, held):
        for client, _, start, trained in held:
            self.last[client], self.when[client] = trained - start, self.steps
        counting = [c for c in self.last if not self.max_age or self.steps - self.when[c] <= self.max_age]
        self.steps += 1
        return model + self.lr * np.mean([self.last[client] for client in counting], axis=0)


class ByRescaled:
    """lr tau_i / mean tau."""

    buffer = 1

    def __init__(self, lr):
        self.lr = lr
        self.tau = simulation(make_selector("random", k=1)).expected_delays

    def step(self, model, held):
        ((client, _, start, trained),) = held
        return model + self.lr * self.tau[client] / self.tau.mean() * (trained - start)


class ByFadas:
    """AMSGrad with a rate that depends on the largest delay."""

    def __init__(self, buffer, lr, tolerated):
        self.buffer, self.lr, self.tolerated = buffer, lr, tolerated
        self.m, self.v, self.w = np.zeros(5), np.zeros(5), np.zeros(5)

    def step(self, model, held):
        update = sum(trained - start for _, _, start, trained in held) / self.buffer
        self.m = 0.9 * self.m + 0.1 * update
        self.v = 0.99 * self.v + 0.01 * update * update
        self.w = np.maximum(self.w, self.v)
        delay = max(lag for _, lag, *_ in held)
        rate = self.lr if delay <= self.tolerated else min(self.lr, 1 / delay)
        return model + rate * self.m / (np.sqrt(self.w) + 1e-3)


class ByMomentumApproximation:
    """Least squares over the whole history: which weights on past aggregates come closest to momentum."""

    def __init__(self, buffer, momentum, lr):
        self.buffer, self.momentum, self.lr = buffer, momentum, lr
        self.aggregates, self.mixes = [], []

    def step(self, model, held):
        now = len(self.aggregates)
        mix = defaultdict(float)
        for _, lag, *_ in held:
            mix[now - lag] += (1 + lag) ** -0.5 / self.buffer
        self.mixes.append(mix)
        self.aggregates.append(sum((1 + lag) ** -0.5 * (t - s) for _, lag, s, t in held) / self.buffer)
        table = np.array([[each[version] for version in range(now + 1)] for each in self.mixes])
        wanted = np.array([self.momentum ** (now - version) for version in range(now + 1)])
        weights = np.linalg.pinv(table.T, rcond=0.1) @ wanted
        return model + self.lr * sum(w * r for w, r in zip(weights, self.aggregates, strict=True))


RUNS = [
    ("ace", {"wait_for_all": False, "lr": 0.3}, lambda: ByLastUpdates(1, 0.3)),
    ("ace", {"wait_for_all": False, "lr": 0.5, "buffer": 3}, lambda: ByLastUpdates(3, 0.5)),
    ("ace", {"wait_for_all": False, "lr": 0.5, "max_age": 6}, lambda: ByLastUpdates(1, 0.5, 6)),
    ("rescaled-asgd", {"lr": 0.2}, lambda: ByRescaled(0.2)),
    ("fadas", {"buffer": 3, "lr": 0.3, "tolerated": 2}, lambda: ByFadas(3, 0.3, 2)),
    ("fadas", {"buffer": 2, "lr": 0.3, "tolerated": 100}, lambda: ByFadas(2, 0.3, 100)),
    ("momentum-approximation", {"buffer": 3, "momentum": 0.6}, lambda: ByMomentumApproximation(3, 0.6, 0.3)),
]


@pytest.mark.parametrize(("name", "options", "rule"), RUNS, ids=[f"{name} {options}" for name, options, _ in RUNS])
def test_whole_runs_follow_the_definition(name, options, rule):
    one = simulation(make_selector(name, **options))
    rounds = one.rounds()
    next(rounds)
    rule = rule()
    lags = []
    for clock, held, model in by_definition(rule, 40 if rule.buffer == 1 else 15, clients=CLIENTS):
        current = next(rounds)
        assert current.clock == pytest.approx(clock)
        assert sorted(current.clients) == sorted(client for client, *_ in held)
        lags.append(max(lag for _, lag, *_ in held))
        torch.testing.assert_close(one.parameters, model, rtol=1e-4, atol=1e-5)
    assert len(set(lags)) > 2, "otherwise nothing was tested"


class Plain:
    """Clients that train all the time, in a loop of our own: `arrivals` yields time, client, its model and update."""

    def __init__(self):
        self.one = simulation(make_selector("random", k=1))
        self.model = self.one.trainer.initial.double().numpy()
        self.jobs, self.events = [0] * CLIENTS, []

    def begin(self, client, now, version=0):
        seconds = self.one.time.delays.draw(self.jobs[client] + 1)[client]
        heappush(self.events, (now + seconds, client, self.jobs[client], self.model.copy(), version))
        self.jobs[client] += 1

    def arrival(self):
        now, client, job, start, version = heappop(self.events)
        sent = torch.from_numpy(start).float()
        trained = self.one.trainer.train(sent, client, job).parameters
        return now, client, (trained - sent).double().numpy(), version


def ace(lr):
    plain, last, first = Plain(), {}, True
    for client in range(CLIENTS):
        plain.begin(client, 0.0)
    while True:
        now, client, update, _ = plain.arrival()
        last[client] = update
        if not first or len(last) == CLIENTS:
            first = False
            plain.model = plain.model + lr * np.mean([*last.values()], axis=0)
            yield now, plain.model
        plain.begin(client, now)


def malenia(answers):
    plain, held = Plain(), defaultdict(list)
    for client in range(CLIENTS):
        plain.begin(client, 0.0)
    while True:
        now, client, update, _ = plain.arrival()
        held[client].append(update)
        if len(held) == CLIENTS and CLIENTS / sum(1 / len(updates) for updates in held.values()) >= answers:
            plain.model = plain.model + np.mean([np.mean(updates, axis=0) for updates in held.values()], axis=0)
            yield now, plain.model
            held.clear()
            plain.events.clear()
            for each in range(CLIENTS):
                plain.begin(each, now)
        else:
            plain.begin(client, now)


def ringleader(lr):
    """The paper's two phases, with both tables and the set of clients that have made their step written out."""
    plain, table, coming = Plain(), {}, defaultdict(list)
    stepped: set[int] = set()
    for client in range(CLIENTS):
        plain.begin(client, 0.0)
    gathering = True
    while True:
        now, client, update, _ = plain.arrival()
        move = False
        if gathering:
            coming[client].append(update)
            if len(coming) == CLIENTS:
                table, coming, gathering = (
                    {each: list(found) for each, found in coming.items()},
                    defaultdict(list),
                    False,
                )
                stepped, move = {client}, True
        elif client in stepped:
            coming[client].append(update)
        else:
            table[client].append(update)
            stepped.add(client)
            move = True
        if move:
            plain.model = plain.model + lr * np.mean([np.mean(found, axis=0) for found in table.values()], axis=0)
            yield now, plain.model
            gathering = len(stepped) == CLIENTS
        plain.begin(client, now)


@pytest.mark.parametrize(
    ("policy", "plain", "steps"),
    [
        (make_selector("ace", lr=0.2), lambda: ace(0.2), 40),
        (make_selector("malenia"), lambda: malenia(1.0), 6),
        (make_selector("malenia", answers=1.7), lambda: malenia(1.7), 5),
        (make_selector("ringleader", lr=0.3), lambda: ringleader(0.3), 40),
    ],
    ids=["ace", "malenia", "malenia more answers", "ringleader"],
)
def test_whole_runs_follow_plain_loops(policy, plain, steps):
    one = simulation(policy)
    rounds = one.rounds()
    next(rounds)
    for clock, model in islice(plain(), steps):
        assert next(rounds).clock == pytest.approx(clock)
        np.testing.assert_allclose(one.parameters.numpy(), model, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shares", ["uniform", "samples"])
@pytest.mark.parametrize(
    "policy",
    [
        make_selector("ace", buffer=CLIENTS, lr=1.0),
        make_selector("malenia"),
        make_selector("ringleader", lr=1.0),
        make_selector("m-sync", m=0),
        make_selector("momentum-approximation", buffer=CLIENTS, momentum=0.0, lr=1.0),
    ],
    ids=repr,
)
def test_they_are_fedavg_where_all_answer_together(policy, shares):
    check_it_is_fedavg(policy, clients=CLIENTS, shares=shares)


def test_without_staleness_momentum_approximation_is_fedavgm():
    ours = simulation(make_selector("momentum-approximation", buffer=CLIENTS, lr=0.5, momentum=0.7), ConstantDelays())
    plain = simulation(make_selector("fedbuff", buffer=CLIENTS, lr=0.5, momentum=0.7), ConstantDelays())
    for one, other in zip(islice(ours.rounds(), 8), islice(plain.rounds(), 8), strict=True):
        assert one.metric == pytest.approx(other.metric, rel=1e-5)


def test_slow_clients_get_longer_steps_in_proportion():
    """Every client adds the same rate per second: number of answers x step size is the same for all, but for ends."""
    one = simulation(make_selector("rescaled-asgd", lr=0.1), LognormalDelays(jitter=0.0))
    rates = np.zeros(CLIENTS)
    for current in islice(one.rounds(), 1, 400):
        rates[list(current.clients)] += current.weights
        last = current.clock
    slowest = one.expected_delays.max() / last
    assert rates / rates.mean() == pytest.approx(np.ones(CLIENTS), abs=2 * slowest)


def test_the_first_m_of_all_make_a_step_of_m_sync():
    one = simulation(make_selector("m-sync", m=3))
    for current in islice(one.rounds(), 1, 9):
        assert (len(current.clients), len(current.failed)) == (CLIENTS, CLIENTS - 3)
        assert current.seconds < one.expected_delays.max(), "nobody waits for the slowest"


@pytest.mark.parametrize("name", NEW)
def test_they_go_on_whoever_crashes_or_is_away(name):
    availability = Availability(on=3.0, off=2.0, crash=0.3)
    options = {"buffer": 3} if name in ("fadas", "momentum-approximation") else {"m": 3} if name == "m-sync" else {}
    one = simulation(make_selector(name, **options), availability=availability, fleet=Fleet(shares="samples"))
    seen, played = set(), []
    for current in islice(one.rounds(), 200 if name == "rescaled-asgd" else 60):
        seen.update(current.clients)
        played.append(current)
    assert seen == set(range(CLIENTS))
    assert played[-1].metric < played[0].metric


@pytest.mark.parametrize("delays", [LognormalDelays(jitter=0.3), ConstantDelays()], ids=["apart", "together"])
@pytest.mark.parametrize("name", [name for name in NEW if name != "m-sync"])
def test_they_resume_bit_for_bit(tmp_path, name, delays):
    check_resumes(tmp_path, lambda: simulation(make_selector(name), delays), 7)


@pytest.mark.parametrize("robust", ["median", "krum"])
@pytest.mark.parametrize("name", ["ace", "ringleader"])
def test_a_robust_rule_combines_the_table(name, robust):
    from fedpace import registry

    one = simulation(make_selector(name, lr=0.3), robust=registry.robust[robust]())
    played = list(islice(one.rounds(), 30))
    assert played[-1].metric < played[0].metric


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("ace", {"buffer": 0}, "buffer of ace"),
        ("ace", {"max_age": -1}, "max_age of ace"),
        ("malenia", {"answers": 0.5}, "answers of malenia"),
        ("ringleader", {"lr": 0.0}, "lr of ringleader"),
        ("rescaled-asgd", {"lr": float("inf")}, "lr of rescaled-asgd"),
        ("fadas", {"beta_1": 1.0}, "beta_1 of fadas"),
        ("momentum-approximation", {"history": 0}, "history of momentum-approximation"),
        ("m-sync", {"m": -1}, "m of m-sync"),
    ],
)
def test_senseless_options_are_refused(name, options, said):
    with pytest.raises(InputError, match=said):
        make_selector(name, **options)
