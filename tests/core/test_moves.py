"""A policy without rounds gives a Move that breaks a rule: an error names the policy, the client and the value."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpace import Coordinator, Outcome, Settings, make_selector
from fedpace._base.errors import InputError
from fedpace.core.tasks import Apply, Move, Wait
from fedpace.core.types import Need, Traits


class Scripted(Traits):
    """Starts clients 0 to 2 of four; with two answers in hand, makes the scripted move."""

    name = "scripted"
    rounds = False
    needs = frozenset[Need]()

    def __init__(self, script):
        self.script = script

    def init(self):
        return 0

    def probe(self, state, view, rng):
        return None

    def decide(self, state, view, rng):
        if not len(view.in_hand):
            return Move(np.arange(3), np.zeros(3), wait=Wait(2)), state + 1
        return self.script(), state + 1

    def observe(self, state, report):
        return state


def move_after_two_answers(script):
    """Return the coordinator and what is due; tasks 0 and 1 are in hand, task 2 is in flight, client "d" is idle."""
    made = Coordinator(Scripted(script), Settings(seed=0))
    made.join(["a", "b", "c", "d"])
    for task in made.due(0.0).tasks[:2]:
        made.receive(task.id, Outcome(task.client, seconds=1.0), 1.0)
    return made, made.due(1.0)


def applies(ids, weights, mode="average"):
    return lambda: Move(apply=Apply(np.array(ids, dtype=np.int64), np.array(weights), mode))


def starts(rows, weights):
    return lambda: Move(np.array(rows), np.array(weights))


BAD = [
    (applies([0, 1], [0.5, math.nan]), "scripted gave client 'b' the weight nan, which is not finite"),
    (applies([1, 0], [0.5, math.inf], "delta"), "scripted gave client 'a' the weight inf, which is not finite"),
    (applies([1, 0], [-0.5, 1.5]), r"scripted gave client 'b' the weight -0\.5: in mode 'average' weights are"),
    (applies([0, 1], [0.5, 0.6]), r"scripted gave weights that sum to 1\.1: in mode 'average' they sum to 1"),
    (applies([0, 1], [1.0]), "scripted applies 2 answers but gave 1 weights: give one each"),
    (applies([0], ["all"]), "the weights of scripted must be numbers"),
    (applies([0], [1.0], "sum"), "scripted asks for the mode 'sum'; there are 'average' and 'delta'"),
    (applies([0, 9], [0.5, 0.5]), "scripted applies task 9, which is not in hand: take ids from the View"),
    (applies([0, 2], [0.5, 0.5]), "scripted applies task 2, which is not in hand"),
    (applies([1, 1], [0.5, 0.5]), "scripted applies task 1 twice: name each task once"),
    (lambda: Move(drop=np.array([1])), "scripted drops task 1, which is not in flight"),
    (starts([-1], [0.0]), "scripted starts row -1, but there are rows 0 to 3"),
    (starts([2], [0.0]), "scripted starts client 'c', which is not available"),
    (starts([3], []), "scripted starts 1 clients but plans 0 weights"),
]


@pytest.mark.parametrize(("script", "words"), BAD)
def test_bad_moves(script, words):
    with pytest.raises(InputError, match=words):
        move_after_two_answers(script)


def test_a_refused_move_leaves_the_state_and_the_tasks_as_they_were():
    scripts = iter([applies([0, 1], [math.nan, 1.0]), applies([0, 1], [0.25, 0.75])])
    made = Coordinator(Scripted(lambda: next(scripts)()), Settings(seed=0))
    made.join(["a", "b", "c", "d"])
    for task in made.due(0.0).tasks[:2]:
        made.receive(task.id, Outcome(task.client, seconds=1.0), 1.0)
    with pytest.raises(InputError):
        made.due(1.0)
    assert made.state == 1
    assert [(task.client, weight) for task, weight in made.due(1.0).step.answers] == [("a", 0.25), ("b", 0.75)]
    assert made.state == 2


def test_a_client_that_is_given_up_may_start_again_at_once():
    script = Move(np.array([2]), np.zeros(1), apply=Apply(np.array([0]), np.ones(1)), drop=np.array([2]))
    _, due = move_after_two_answers(lambda: script)
    assert [task.client for task in due.step.dropped] == ["c"]
    assert [task.client for task in due.tasks] == ["c"]


def test_weights_may_be_negative_in_mode_delta_and_a_step_may_have_no_answer():
    _, due = move_after_two_answers(applies([1, 0], [-0.5, 2.0], "delta"))
    assert [(task.client, weight) for task, weight in due.step.answers] == [("b", -0.5), ("a", 2.0)]
    _, due = move_after_two_answers(applies([], []))
    assert due.step.answers == ()


def test_a_straggler_may_leave_between_the_step_and_its_end():
    """m-sync drops client "c" in the step; it leaves before the host says that the step was made."""
    made = Coordinator(make_selector("m-sync", m=2), Settings(seed=0))
    made.join(["a", "b", "c"])
    for task in made.due(0.0).tasks[:2]:
        made.receive(task.id, Outcome(task.client, seconds=1.0), 1.0)
    step = made.due(1.0).step
    assert [task.client for task in step.dropped] == ["c"]
    made.leave(["c"])
    made.stepped(1.0)
    assert {task.client for task in made.due(1.0).tasks} == {"a", "b"}
