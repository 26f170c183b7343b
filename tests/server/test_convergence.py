"""Where lengthened steps end up: where plain averaging does, however long the run and whoever disagrees."""

from __future__ import annotations

import numpy as np
import pytest

from fedpace.core.server_rule import Gather
from fedpace.server.average import Average
from fedpace.server.fedexp import Fedexp
from fedpace.server.nesterov import Nesterov

LENGTHENED = [Nesterov(), Nesterov(power=0.0), Fedexp(), Fedexp(power=0.5)]


class Federation:
    """Linear regressions that share no optimum; a client takes `steps` full-batch steps of its own 1 / L."""

    def __init__(self, seed, clients=10, width=6, samples=12, condition=30.0, steps=1):
        rng = np.random.default_rng(seed)
        scale = np.geomspace(1.0, 1.0 / np.sqrt(condition), width)
        inputs = [rng.standard_normal((samples, width)) * scale for _ in range(clients)]
        goals = rng.standard_normal((clients, width)) * 3
        self.moments = np.array([x.T @ x / samples for x in inputs])
        noise = [x.T @ rng.standard_normal(samples) / samples for x in inputs]
        self.targets = np.array([m @ g for m, g in zip(self.moments, goals, strict=True)]) + np.array(noise)
        self.rates = 1.0 / np.linalg.eigvalsh(self.moments)[:, -1]
        self.clients, self.width, self.steps = clients, width, steps

    def trained(self, client, model):
        for _ in range(self.steps):
            model = model - self.rates[client] * (self.moments[client] @ model - self.targets[client])
        return model

    def fixed_point(self):
        """Where plain averaging over everybody stands still: T is affine, so two evaluations per coordinate give it."""
        still = np.mean([self.trained(i, np.zeros(self.width)) for i in range(self.clients)], axis=0)
        columns = [
            np.mean([self.trained(i, unit) for i in range(self.clients)], axis=0) - still for unit in np.eye(self.width)
        ]
        return np.linalg.solve(np.eye(self.width) - np.array(columns).T, still)

    def played(self, rule, rounds, cohorts=None):
        """Distances from the fixed point, round by round."""
        model, state = np.full(self.width, 10.0), rule.init(np.zeros(self.width))
        goal, distances = self.fixed_point(), []
        for number in range(rounds):
            cohort = range(self.clients) if cohorts is None else cohorts[number]
            gather = Gather(rule, np.zeros(self.width))
            for client in cohort:
                gather.add(self.trained(client, model), model, 1 / len(cohort))
            model, state = rule.apply(state, model, gather.answers())
            distances.append(np.linalg.norm(model - goal))
        return np.array(distances)


@pytest.mark.parametrize("rule", LENGTHENED, ids=repr)
@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("seed", range(4))
def test_full_participation_converges_to_where_plain_averaging_stands_still(rule, steps, seed):
    federation = Federation(seed, steps=steps)
    distances = federation.played(rule, 1500)
    assert distances[-200:].max() < 1e-3 * distances[0]
    assert distances.max() < 3 * distances[0], "and never went far away on the way"


@pytest.mark.parametrize("rule", LENGTHENED, ids=repr)
@pytest.mark.parametrize("seed", range(4))
def test_with_random_cohorts_it_stays_as_close_as_plain_averaging(rule, seed):
    federation = Federation(seed, clients=20)
    rng = np.random.default_rng([seed, 1])
    cohorts = [rng.choice(20, 5, replace=False) for _ in range(3000)]
    plain = federation.played(Average(), 3000, cohorts)[-500:]
    found = federation.played(rule, 3000, cohorts)[-500:]
    assert np.sqrt(np.mean(found**2)) < 1.5 * np.sqrt(np.mean(plain**2))


def test_ill_conditioned_problems_are_solved_faster():
    """What the lengthening is for: the plain average crawls along the flat directions."""
    federation = Federation(0, condition=3000.0)
    plain, fast = (federation.played(rule, 300)[-1] for rule in (Average(), Nesterov()))
    assert fast < 0.2 * plain


@pytest.mark.parametrize("rule", LENGTHENED, ids=repr)
def test_one_client_against_all_others_cannot_throw_the_model(rule):
    """Nine at +1 and one at -8.99 nearly cancel out: FedExP as published would go 4,491 times as far as the average."""
    model, state = np.zeros(1), rule.init(np.zeros(1))
    for number in range(5):
        gather = Gather(rule, np.zeros(1))
        for update in [1.0] * 9 + [-8.99]:
            gather.add(model + update, model, 0.1)
        before = model
        model, state = rule.apply(state, model, gather.answers())
        assert abs(model - before) <= 0.001 * 2 ** (number + 2)


def test_the_papers_rule_is_there_for_comparison():
    gather = Gather(Fedexp(guarded=False), np.zeros(1))
    for update in [1.0] * 9 + [-8.99]:
        gather.add(np.array([update]), np.zeros(1), 0.1)
    rule = Fedexp(guarded=False)
    assert rule.apply(rule.init(np.zeros(1)), np.zeros(1), gather.answers())[0] > 4
    calm = Fedexp(guarded=False, epsilon=1.0)
    assert calm.apply(calm.init(np.zeros(1)), np.zeros(1), gather.answers())[0] < 0.01
