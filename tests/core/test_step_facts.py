"""A policy tells its server rule more than weights: numbers about the step and about each answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import fedpace
from fedpace._base.errors import InputError
from fedpace.core.tasks import Apply, Move, Wait
from fedpace.core.types import Traits


@dataclass(frozen=True)
class Telling(Traits):
    name: ClassVar[str] = "telling"
    needs: ClassVar[frozenset] = frozenset()
    rounds: ClassVar[bool] = False
    wrong: bool = False

    def init(self):
        return None

    def probe(self, state, view, rng):
        return None

    def decide(self, state, view, rng):
        hand, apply = view.in_hand, None
        if len(hand) == view.clients:
            told = {"phase": 2, "rank": np.arange(len(hand) + self.wrong) * 10.0}
            apply = Apply(hand.ids, np.full(len(hand), 1 / len(hand)), facts=told)
        rows = view.candidates[:0] if len(hand) and apply is None else view.candidates
        return Move(rows, np.zeros(rows.size), apply=apply, wait=Wait(len(hand) + 1 if apply is None else 1)), None

    def observe(self, state, report):
        return None


class Listening:
    name = "listening"
    takes = frozenset({"rows"})

    def __init__(self):
        self.heard = []

    def init(self, zero):
        return None

    def apply(self, state, model, answers):
        self.heard.append(dict(answers.facts))
        return model + answers.step, None


def step(policy, rule, trained):
    coordinator = fedpace.Coordinator(policy)
    coordinator.join(range(3))
    model = fedpace.SharedModel({"w": np.zeros(2)}, rule)
    due = coordinator.due(0.0)
    for task in due.tasks:
        coordinator.receive(task.id, fedpace.Outcome(task.client, seconds=1.0), 1.0)
        coordinator.due(1.0) if task.client < 2 else None
    due = coordinator.due(1.0)
    answers = {task.id: {"w": trained[task.client]} for task, _ in due.step.answers}
    model.apply(coordinator, due.step, answers)
    coordinator.stepped(1.0)


def test_a_rule_hears_what_its_policy_says():
    rule = Listening()
    step(Telling(), rule, [np.ones(2), np.ones(2), np.ones(2)])
    (heard,) = rule.heard
    assert heard["phase"] == 2.0
    np.testing.assert_array_equal(heard["rank"], [0.0, 10.0, 20.0])


def test_numbers_of_refused_answers_are_left_out():
    rule = Listening()
    step(Telling(), rule, [np.ones(2), np.full(2, np.nan), np.ones(2)])
    np.testing.assert_array_equal(rule.heard[0]["rank"], [0.0, 20.0])


def test_there_must_be_one_number_per_answer():
    with pytest.raises(InputError, match=r"the fact 'rank' of telling must be a number, or one for each of the 3"):
        step(Telling(wrong=True), Listening(), [np.ones(2)] * 3)
