"""Momentum: its sequence and restarts, against Nesterov's method by hand, in the simulator and across checkpoints."""

from __future__ import annotations

import itertools
from itertools import islice

import numpy as np
import pytest
import torch

from fedpace import make_selector
from fedpace._base.errors import InputError
from fedpace.core.server_rule import Gather, join_state, split_state
from fedpace.data.quadratic import Quadratic
from fedpace.delays.uniform import UniformDelays
from fedpace.models.builtin import Linear
from fedpace.server._step_length import carried_part
from fedpace.server.nesterov import Nesterov
from fedpace.sim.checkpoint import Checkpoints
from fedpace.sim.rounds import Simulation
from fedpace.sim.training import Training


def test_the_part_that_is_carried_on_grows_with_the_rounds():
    age, parts = 0, []
    for _ in range(4):
        part, age = carried_part(age, 1.0)
        parts.append(part)
    assert parts == [0.0, 1 / 4, 2 / 5, 3 / 6]


def test_a_round_that_turns_back_starts_anew():
    assert carried_part(7, -1e-9) == (0.0, 1)
    assert carried_part(1, 1.0) == (1 / 4, 2)


@pytest.mark.parametrize(("curvature", "part"), [(-0.3, 3 / 6), (0.0, 3 / 6), (0.5, 1 / 3), (0.9, 1 / 19), (1.7, 0.0)])
def test_the_part_is_limited_by_how_far_the_average_goes_already(curvature, part):
    assert carried_part(3, 1.0, curvature) == (pytest.approx(part), 4)
    if 0 < curvature < 1:
        assert curvature / (1 - min(part, 1 / 3)) <= (1 + curvature) / 2 + 1e-12, "half of what is left, and no more"


def nesterov(slope, start, rounds):
    """Nesterov's method as textbooks have it: x_k = y_k - slope(y_k), y_(k+1) = x_k + b (x_k - x_(k-1)).

    b = k / (k + 3), and at the most (1 - h) / (1 + h), h being the curvature along the way, from all moves so far.
    """
    y, x, models, steps, age = start.copy(), start.copy(), [start], [], 0
    for _ in range(rounds):
        steps.append(-slope(y))
        moved = y + steps[-1] - x
        if steps[-1] @ moved < 0:
            age = 0
        moves = np.diff(models, axis=0)
        pairs = []
        for number in range(1, len(moves)):
            before, last = (move / np.linalg.norm(move) for move in moves[number - 1 : number + 1])
            change = (steps[number] - steps[number + 1]) / np.linalg.norm(moves[number])
            pairs.append((last @ before, change @ before))
        ages = 0.5 ** np.arange(len(pairs))[::-1]
        h = (
            sum(a * w * c for a, (w, c) in zip(ages, pairs, strict=True))
            / sum(a * w * w for a, (w, _) in zip(ages, pairs, strict=True))
            if pairs
            else 0.0
        )
        part = min(age / (age + 3), (1 - min(max(h, 0), 1)) / (1 + min(max(h, 0), 1)))
        x, y, age = y + steps[-1], y + steps[-1] + part * moved, age + 1
        models.append(y)
    return models[1:]


@pytest.mark.parametrize("rounds", [12, 60])
def test_it_is_nesterovs_method_with_restarts(rounds):
    """One client that takes one step of gradient descent on an ill-conditioned quadratic: long enough to restart."""
    curvature = torch.tensor([1.0, 0.3, 0.01], dtype=torch.float64)
    start = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    expected = nesterov(lambda y: 0.9 * curvature.numpy() * y, start.numpy(), rounds)
    rule, model, ages = Nesterov(power=0.0), start.clone(), []
    state = rule.init(torch.zeros(3, dtype=torch.float64))
    for wanted in expected:
        gather = Gather(rule, torch.zeros(3, dtype=torch.float64))
        gather.add(model - 0.9 * curvature * model, model, 1.0)
        model, state = rule.apply(state, model, gather.answers())
        ages.append(state.age)
        np.testing.assert_allclose(model.numpy(), wanted, rtol=1e-9, atol=1e-12)
    assert (1 in ages[1:]) == (rounds == 60), "only the longer one restarts"


def played(curvature, rounds, *, noise=0.0, seed=0, rule=None):
    """One client whose update goes the part `curvature` of the way to 0 in each direction, and noise."""
    rng = np.random.default_rng(seed)
    rule = rule or Nesterov(power=0.0)
    model, states = np.ones(len(curvature)), [rule.init(np.zeros(len(curvature)))]
    distances = []
    for _ in range(rounds):
        gather = Gather(rule, np.zeros(len(curvature)))
        gather.add(model - curvature * model + noise * rng.standard_normal(len(curvature)), model, 1.0)
        model, state = rule.apply(states[-1], model, gather.answers())
        states.append(state)
        distances.append(np.linalg.norm(model))
    return distances, states


def test_clients_that_train_for_long_are_not_carried_past_the_minimum():
    """Each round goes nine tenths of the way: plain averaging leaves a tenth, and momentum must not make it worse."""
    distances, states = played(np.full(5, 0.9), 12)
    assert states[5].curvature_numerator / states[5].curvature_denominator == pytest.approx(0.9)
    assert max(state.carried for state in states[3:]) <= 1 / 19 + 1e-9
    assert all(after < before for before, after in itertools.pairwise(distances))
    assert distances[-1] < 0.1 ** len(distances), "no later than by plain averaging"


def test_noise_is_not_taken_for_curvature():
    """A flat direction under noise as long as what it moves by: momentum builds up all the same."""
    _, states = played(np.full(400, 1e-3), 200, noise=1e-3, seed=1)
    told = [state.curvature_numerator / state.curvature_denominator for state in states[20:]]
    secants = [state.curvature for state in states[20:]]
    assert np.median(told) < 0.1, "what the moves before tell"
    assert np.median(secants) > 0.9, "what the last move alone would have told"
    assert np.median([state.carried for state in states[20:]]) > 0.8


def test_a_state_of_another_rule_is_refused():
    rule, zero = Nesterov(), np.zeros(3)
    _, states = played(np.array([0.5, 0.2, 0.1]), 4, rule=rule)
    scalars, vectors = split_state(states[-1])
    restored = join_state(rule.init(zero), scalars, vectors)
    assert restored.age == states[-1].age
    np.testing.assert_array_equal(restored.momentum, states[-1].momentum)
    del scalars["age"]
    with pytest.raises(InputError, match="another rule"):
        join_state(rule.init(zero), scalars, vectors)


def simulation(**options):
    return Simulation(
        Quadratic(clients=8, samples=12, test_samples=10, dimension=5),
        Linear(),
        UniformDelays(),
        make_selector("random", k=4, **options),
        training=Training(epochs=1, batch=0, lr=0.05),
        seed=1,
    )


def test_rounds_record_what_they_carry_on():
    rounds = list(islice(simulation(momentum=True).rounds(), 4))
    assert [one.carried for one in rounds[:3]] == [0.0, 0.0, 1 / 4]
    assert 0 < rounds[3].carried < 2 / 5, "these rounds go a good part of the way each"
    assert all(one.carried == 0.0 for one in islice(simulation().rounds(), 4))


def test_a_run_with_momentum_resumes_bit_for_bit(tmp_path):
    whole = simulation(momentum=True, fedexp_exponent=1.0)
    expected = list(islice(whole.rounds(), 9))
    cut = simulation(momentum=True, fedexp_exponent=1.0)
    list(islice(cut.rounds(), 5))
    Checkpoints(tmp_path).save(cut, wall_seconds=1.0)
    resumed = simulation(momentum=True, fedexp_exponent=1.0)
    Checkpoints(tmp_path).restore(resumed)
    assert list(islice(resumed.rounds(), 4)) == expected[5:]
    assert torch.equal(resumed.parameters, whole.parameters)


def test_only_an_average_can_be_carried_on():
    with pytest.raises(InputError, match="uniform-unbiased"):
        make_selector("random", variant="uniform-unbiased", momentum=True)
