"""A warm-up that trains: it is the first round, need not wait for all, and who misses its end is heard later."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from sessions import Everybody

from fedpace import Outcome
from fedpace.core.coordinator import Coordinator
from fedpace.core.settings import Settings


def coordinator(clients=4, **settings):
    one = Coordinator(Everybody(), Settings(**({"warmup_trains": True, "warmup_wait": 0.5} | settings)))
    one.join(range(clients))
    return one


def answer(one, tasks, clients, seconds=1.0):
    """Let these clients answer their tasks."""
    by_client = {task.client: task.id for task in tasks}
    for client in clients:
        assert one.receive(by_client[client], Outcome(client, seconds=seconds + client))


def first_round(one, clients=(0, 1), lost=()):
    due = one.due(0.0)
    answer(one, due.tasks, clients)
    for client in lost:
        one.lost({task.client: task.id for task in due.tasks}[client])
    step = one.due(3.0).step
    assert step is not None
    return due, step, one.stepped()


def test_everybody_trains_and_half_of_them_are_the_first_round():
    one = coordinator()
    due, step, turn = first_round(one)
    assert not due.warmup
    assert [(task.client, task.kind, task.weight) for task in due.tasks] == [(c, "train", 0.25) for c in range(4)]
    assert [(task.client, weight) for task, weight in step.answers] == [(0, 0.5), (1, 0.5)]
    assert step.dropped == (), "nobody is given up"
    assert (turn.clients, turn.failed, turn.warmed) == ([0, 1], [], [2, 3])
    assert turn.why.reasons == dict.fromkeys(range(4), "warm-up")
    assert one.step == 1


def test_who_is_late_measures_on_and_is_known_from_its_answer():
    one = coordinator()
    due, _, _ = first_round(one)
    assert [(task.client, task.kind, task.step) for task in one.tasks] == [(2, "measure", 0), (3, "measure", 0)]
    assert one.view().participations.tolist() == [1, 1, 0, 0]
    assert one.ledger.columns["failures"].tolist() == [0, 0, 0, 0], "nobody is blamed"
    second = one.due(4.0)
    assert [task.client for task in second.tasks] == [0, 1], "who still measures is not chosen"
    answer(one, due.tasks, [2], seconds=9.0)
    answer(one, second.tasks, [0, 1])
    assert one.due(12.0).step is not None
    one.stepped()
    third = one.due(12.0)
    assert [task.client for task in third.tasks] == [0, 1, 2]
    assert one.log.heard == [2]
    assert one.view().participations.tolist() == [2, 2, 1, 0]
    assert np.isfinite(one.view().delay[:3]).all()


def test_all_are_waited_for_where_nothing_else_is_said():
    one = coordinator(warmup_wait=1.0)
    due = one.due(0.0)
    answer(one, due.tasks, [0, 1, 2])
    assert not one.due(5.0)
    answer(one, due.tasks, [3])
    assert len(one.due(6.0).step.answers) == 4


def test_failures_are_not_enough_and_are_met_again_a_few_at_a_time():
    one = coordinator(warmup_wait=0.5)
    due = one.due(0.0)
    ids = {task.client: task.id for task in due.tasks}
    one.lost(ids[0])
    answer(one, due.tasks, [1])
    assert not one.due(3.0), "one answer of two"
    answer(one, due.tasks, [2])
    assert one.due(4.0).step is not None
    turn = one.stepped()
    assert (turn.clients, turn.failed, turn.warmed) == ([0, 1, 2], [0], [3])
    for attempt in range(40):
        tasks = one.due(5.0 + attempt).tasks
        if newcomers := [task for task in tasks if task.kind == "measure"]:
            break
        answer(one, tasks, [task.client for task in tasks])
        one.due(5.0 + attempt)
        one.stepped()
    assert [task.client for task in newcomers] == [0], "not the one that still measures"


def test_where_all_fail_the_model_stays_and_some_are_tried_again():
    one = coordinator()
    due, step, turn = first_round(one, clients=(), lost=range(4))
    assert step.answers == ()
    assert turn.failed == [0, 1, 2, 3]
    again = one.due(4.0)
    assert {task.kind for task in again.tasks} == {"train"}
    assert one.log.why.status.startswith("lazy warm-up")
    assert len(due.tasks) == 4


def test_newcomers_measure_while_somebody_is_known():
    one = coordinator()
    first_round(one)
    one.join(["new", "newer"])
    due = one.due(5.0)
    assert due.warmup
    assert [(task.client, task.kind) for task in due.tasks] == [("new", "measure"), ("newer", "measure")]
    answer_one = {task.client: task.id for task in due.tasks}["new"]
    one.receive(answer_one, Outcome("new", seconds=2.0))
    assert [task.client for task in one.due(7.0).tasks] == [0, 1, "new"], "half of them will do"


def test_who_leaves_while_it_measures_is_forgotten():
    one = coordinator()
    due, _, _ = first_round(one)
    one.leave([2])
    assert [task.client for task in one.tasks] == [3]
    assert not one.receive({task.client: task.id for task in due.tasks}[2], Outcome(2, seconds=1.0))


def test_a_lazy_warm_up_is_as_it_was():
    one = coordinator(warmup="lazy", warmup_quota=2)
    due = one.due(0.0)
    assert len(due.tasks) == 2
    assert not one.progress.training


@pytest.mark.parametrize("wait", [0.25, 0.5, 1.0])
def test_saved_at_any_instant_it_goes_on(tmp_path, wait):
    """Two twins, one of which is saved and restored after every event, with crashes and a newcomer on the way."""
    seconds = {0: 1.0, 1: 2.0, 2: 4.0, 3: 30.0, "new": 3.0}
    one, two = (coordinator(warmup_wait=wait) for _ in range(2))
    flying: list[tuple[float, int, object]] = []
    turns = []
    for event in range(60):
        two.save(tmp_path)
        two = Coordinator.restore(tmp_path, Everybody())
        if event == 20:
            one.join(["new"])
            two.join(["new"])
        mine, theirs = one.due(), two.due()
        assert mine.tasks == theirs.tasks
        assert (mine.step is None) == (theirs.step is None)
        if mine.step is not None:
            assert mine.step.answers == theirs.step.answers
            turns.append(one.stepped())
            assert vars(turns[-1].why) == vars((other := two.stepped()).why)
            assert (turns[-1].clients, turns[-1].warmed, turns[-1].heard) == (other.clients, other.warmed, other.heard)
        for task in mine.tasks:
            heapq.heappush(flying, (one.now + seconds[task.client], task.id, task.client))
        if not mine and flying:
            when, task, client = heapq.heappop(flying)
            for each in (one, two):
                each.advance(max(when, each.now))
                if client == 1 and task % 3 == 0:
                    each.lost(task)
                else:
                    each.receive(task, Outcome(client, seconds=seconds[client]))
    assert len(turns) > 5
    assert {client for turn in turns for client in turn.clients} >= {0, 1, 2, "new"}
