"""The extrapolated step: its factor, its wiring through session and simulator, and the weights that views remember."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedpace import make_selector
from fedpace._base.errors import InputError
from fedpace.data.digits import Digits
from fedpace.delays.uniform import UniformDelays
from fedpace.models.builtin import Softmax
from fedpace.server._step_length import BUDGET, DECAY, StepLength, fedexp_factor
from fedpace.sim.rounds import Simulation
from fedpace.sim.training import Training


def test_clients_that_agree_get_the_plain_step():
    assert fedexp_factor(4.0, 4.0, 1.0) == 1.0


def test_clients_at_right_angles_get_half_their_number():
    updates = np.eye(6)
    mean = updates.mean(axis=0)
    assert fedexp_factor(1.0, float(mean @ mean), 1.0) == pytest.approx(3.0)


def test_half_the_power_is_the_geometric_mean_with_the_plain_step():
    assert fedexp_factor(18.0, 1.0, 0.5) == pytest.approx(3.0)
    assert fedexp_factor(18.0, 1.0, 0.0) == 1.0


def test_updates_that_cancel_out_are_left_alone():
    assert fedexp_factor(1.0, 0.0, 1.0) == 1.0


def test_the_first_step_is_at_most_twice_the_average_and_doubles_at_most():
    first = StepLength().next(50.0, change=1.0, moved=0.0, length=1.0)
    assert first.step_factor == 2.0
    again = first.next(50.0, change=1e-9, moved=1.0, length=1.0)
    assert again.step_factor == 4.0


def test_what_past_steps_showed_of_the_curvature_limits_the_next():
    """The model moved by 2 and the update changed by 1: a step may be twice as long as the average, not more."""
    limited = StepLength(step_factor=8.0).next(50.0, change=1.0, moved=2.0, length=1.0)
    assert limited.step_factor == pytest.approx(2.0)
    remembered = limited.next(50.0, change=0.0, moved=2.0, length=1.0)
    assert remembered.step_factor == pytest.approx(2.0 / 0.9), "forgotten by a tenth per step"


def test_noise_makes_it_the_plain_average():
    assert StepLength(step_factor=8.0).next(50.0, change=1.0, moved=0.1, length=1.0).step_factor == 1.0


def test_never_shorter_than_the_average():
    assert StepLength().next(0.1, change=1.0, moved=0.0, length=1.0).step_factor == 1.0


def test_what_goes_beyond_the_average_adds_up_to_a_finite_length():
    length, total = StepLength(longest=2.0), 0.0
    for _ in range(5000):
        part, length = length.within_budget(1e9)
        total += part * 1e9
    assert total <= 2.0 * BUDGET * DECAY / (DECAY - 1)
    assert length.within_budget(0.0)[0] == 1.0


def test_the_simulator_takes_the_longer_step():
    """A round of `random` with and without: same cohort, same models, a step longer by the recorded factor."""

    def first_round(fedexp_exponent):
        simulation = Simulation(
            Digits(clients=12, alpha=0.1),
            Softmax(),
            UniformDelays(),
            make_selector("random", k=6, fedexp_exponent=fedexp_exponent),
            training=Training(lr=0.5),
            seed=3,
        )
        before = simulation.parameters.clone()
        rounds = simulation.rounds()
        next(rounds)
        return next(rounds), simulation.parameters - before

    plain, step = first_round(0.0)
    longer, long_step = first_round(1.0)
    assert plain.step_factor == 1.0
    assert longer.step_factor > 1.0
    assert longer.clients == plain.clients
    torch.testing.assert_close(long_step, longer.step_factor * step)


def test_only_an_average_can_be_extrapolated():
    with pytest.raises(InputError, match="uniform-unbiased"):
        make_selector("random", variant="uniform-unbiased", fedexp_exponent=1.0)
