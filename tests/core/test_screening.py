"""Updates that are far longer than the others', and what a coordinator makes of answers that are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fedpace
from fedpace.core.errors import OrderError
from fedpace.core.screening import REMEMBERED, LengthScreen
from fedpace.core.types import Outcome


def test_what_is_usual_is_the_median():
    screen = LengthScreen(10.0)
    assert screen.unusual([1.0, 2.0, 3.0, 19.0]) == {}
    assert screen.unusual([1.0, 200.0, math.inf]) == {1: pytest.approx(200 / 3), 2: math.inf}
    assert all(map(math.isfinite, screen.lengths)), "they are saved as JSON"


def test_too_few_lengths_say_nothing():
    screen = LengthScreen(10.0)
    assert screen.unusual([1.0, 1e9]) == {}
    assert screen.unusual([1.0, 1.0]) == {}
    assert set(screen.unusual([1.0, 1e9])) == {1}


def test_still_clients_make_nobody_unusual():
    assert LengthScreen(10.0).unusual([0.0, 0.0, 0.0, 5.0]) == {}


def test_it_can_be_switched_off():
    assert LengthScreen(0.0).unusual([1.0, 1.0, 1.0, 1e30]) == {}


def test_fewer_than_half_cannot_move_what_is_usual():
    screen = LengthScreen(10.0)
    for _ in range(50):
        assert set(screen.unusual([1.0, 1.1, 0.9, 1e6, 1e6])) == {3, 4}


def test_where_everybody_steps_further_the_rule_follows():
    """A learning rate that is raised a hundredfold must not end the training."""
    screen = LengthScreen(10.0, [1.0] * REMEMBERED)
    refused = [len(screen.unusual([100.0] * 8)) for _ in range(6)]
    assert refused == [8, 8, 8, 8, 0, 0]


def test_another_order_or_scale_changes_nothing():
    lengths = fedpace.stream(0, "lengths").lognormal(sigma=2.0, size=20).tolist()
    times = LengthScreen(10.0).unusual(lengths)
    assert times
    for scale in (1e-9, 1e9):
        scaled = LengthScreen(10.0).unusual([scale * length for length in reversed(lengths)])
        assert {19 - place: pytest.approx(ratio) for place, ratio in scaled.items()} == times


def coordinator(k=4):
    made = fedpace.Coordinator(fedpace.make_selector("random", k=k), fedpace.Settings(seed=0))
    made.join(list("abcd"[:k]))
    return made


def test_who_is_refused_has_failed_and_leaves_its_weight_to_the_others():
    made = coordinator()
    tasks = made.due(0.0).tasks
    for task in tasks:
        made.receive(task.id, Outcome(task.client, seconds=1.0, loss=0.5), now=1.0)
    due = made.due(1.0)
    assert [weight for _, weight in due.step.answers] == [0.25] * 4
    left = made.refuse([tasks[1].id])
    assert [task.client for task, _ in left.answers] == [task.client for task in tasks if task is not tasks[1]]
    np.testing.assert_allclose([weight for _, weight in left.answers], 1 / 3)
    turn = made.stepped(1.0)
    assert turn.failed == [tasks[1].client]
    row = made.ledger.row(tasks[1].client)
    assert made.ledger.columns["failures"].tolist() == [int(i == row) for i in range(4)]
    assert math.isnan(made.ledger.columns["loss"][row]), "what it said is not believed"
    assert made.due(1.0).tasks, "the next round begins"


def test_all_may_be_refused():
    made = coordinator(2)
    tasks = made.due(0.0).tasks
    for task in tasks:
        made.receive(task.id, Outcome(task.client, seconds=1.0), now=1.0)
    made.due(1.0)
    assert made.refuse([task.id for task in tasks]).answers == ()
    assert len(made.stepped(1.0).failed) == 2


def test_there_must_be_a_step_to_refuse_answers_of():
    with pytest.raises(OrderError, match="without a step"):
        coordinator().refuse([0])
