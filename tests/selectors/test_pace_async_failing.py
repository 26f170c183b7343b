"""pace-async where a client fails again and again: it is tried again, and nobody waits for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedpace.core.coordinator import Coordinator
from fedpace.core.settings import Settings
from fedpace.core.types import Outcome
from fedpace.selectors.pace_async import PaceAsync

CLIENTS, FAILING = 4, 3


def played(steps, *, fails):
    """Clients answer together, one second after they began; the last fails a second later, where it fails at all.

    Whatever is in hand, the memory is said to err so much that no number of answers would do.
    """
    one = Coordinator(PaceAsync(), Settings(seed=0))
    one.join(range(CLIENTS))
    rng, now, made, failed = np.random.default_rng(0), 0.0, [], 0

    def answer(client, seconds):
        moment = np.random.default_rng(client).normal(size=(3, 3))
        return Outcome(client, seconds=seconds, update=rng.normal(size=4), moment=moment)

    for _ in range(200):
        one.state = replace(one.state, disagreement=1e5)
        due = one.due(now, range(CLIENTS))
        if due.step is not None:
            made.append([task.client for task, weight in due.step.answers if weight])
            one.stepped()
            if len(made) == steps:
                return made, failed
        tasks = one.tasks
        now += 1.0
        late = [task for task in tasks if task.client == FAILING]
        for task in tasks:
            if task.client != FAILING:
                one.receive(task.id, answer(task.client, 1.0), now)
        if late and not any(task.client != FAILING for task in tasks):
            if fails:
                one.lost(late[0].id, now)
                failed += 1
            else:
                one.receive(late[0].id, answer(FAILING, 2.0), now)
    return made, failed


def test_steps_are_made_although_a_client_fails_every_time():
    made, failed = played(6, fails=True)
    assert len(made) == 6, "it waited for a client that never answers"
    assert failed >= 6, "it is tried again with every model"
    assert not any(FAILING in clients for clients in made)


def test_who_has_not_failed_is_waited_for():
    made, _ = played(6, fails=False)
    assert len(made) == 6
    assert all(FAILING in clients for clients in made)


def with_a_leaver(*, answered):
    """The last of five clients fails and is tried again, then client 0 leaves, whose answer may be in hand."""
    one = Coordinator(PaceAsync(), Settings(seed=0))
    one.join(range(5))
    rng = np.random.default_rng(0)
    tasks = {task.client: task.id for task in one.due(0.0, range(5)).tasks}

    def answers(client, now):
        moment = rng.normal(size=(3, 3))
        one.receive(tasks[client], Outcome(client, seconds=now, update=rng.normal(size=4), moment=moment), now)

    for client in (0, 1, 2) if answered else (1, 2):
        answers(client, 1.0)
    one.lost(tasks[4], 1.0)
    one.state = replace(one.state, disagreement=1e5, plan_at_answers=9, plan_at_time=100.0)
    assert [task.client for task in one.due(1.0, range(5)).tasks] == [4], "it is tried again"
    one.leave([0])
    answers(3, 2.0)
    return one.due(2.0, range(1, 5)).step


@pytest.mark.parametrize("answered", [False, True])
def test_who_has_failed_is_known_although_another_client_leaves(answered):
    """Rows move up when a client leaves: what is known of the current model's tasks must move with them."""
    step = with_a_leaver(answered=answered)
    assert step is not None, "it waited for a client that has failed, or for one more answer than are to come"
    assert {task.client for task, _ in step.answers} == {1, 2, 3}
