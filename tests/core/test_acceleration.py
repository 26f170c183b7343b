"""Momentum: its sequence and restarts, against Nesterov's method by hand, in the simulator and across checkpoints."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch

from fedpace import make_selector
from fedpace.core.acceleration import carried_part
from fedpace.core.errors import InputError
from fedpace.core.stepping import Gather
from fedpace.data.quadratic import Quadratic
from fedpace.delays.uniform import UniformDelays
from fedpace.models.linear import Linear
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


def nesterov(slope, start, rounds):
    """Nesterov's method as textbooks have it: x_k = y_k - slope(y_k), y_(k+1) = x_k + k / (k + 3) (x_k - x_(k-1))."""
    y, x, path, age = start.copy(), start.copy(), [], 0
    for _ in range(rounds):
        step = -slope(y)
        moved = y + step - x
        if step @ moved < 0:
            age = 0
        x, y, age = y + step, y + step + age / (age + 3) * moved, age + 1
        path.append(y)
    return path


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
        np.testing.assert_allclose(model.numpy(), wanted, rtol=1e-12, atol=1e-15)
    assert (1 in ages[1:]) == (rounds == 60), "only the longer one restarts"


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
    assert [one.carried for one in rounds] == [0.0, 0.0, 1 / 4, 2 / 5]
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
