"""The coordinator without wires: how rounds end, newcomers beside them, versions in flight, policies without rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from buffered import Buffered

from fedpace import Cohort, Need, Outcome, Probe
from fedpace._base.errors import InputError, OrderError
from fedpace.core.coordinator import Coordinator
from fedpace.core.settings import Settings
from fedpace.core.types import Diagnostics, Stateless


@dataclass(frozen=True)
class Everybody(Stateless):
    """All that are available, evenly."""

    name: ClassVar[str] = "everybody"
    needs: ClassVar[frozenset[Need]] = frozenset()

    deadline: float = math.inf
    quorum: int = 0

    def select(self, state, view, rng):
        rows = view.candidates
        weights, why = np.full(rows.size, 1 / rows.size), Diagnostics(predicted_seconds=7.0)
        return Cohort(rows, weights, deadline=self.deadline, why=why, quorum=self.quorum), None


@dataclass(frozen=True)
class Known(Everybody):
    """The same, of those whose delay is known."""

    name: ClassVar[str] = "known"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY})


def coordinator(policy, clients=4, **settings):
    one = Coordinator(policy, Settings(**settings))
    one.join(range(clients))
    return one


def play(one, seconds, *, crashed=(), tasks=None):
    """Deliver answers at their times until the step; return it, with the time and the waited seconds."""
    tasks = one.due(one.now).tasks if tasks is None else tasks
    began, ends = one.now, sorted((seconds[task.client], task.id, task.client) for task in tasks)
    while True:
        due = one.due()
        if due.step is not None:
            return due.step, one.now - began
        first = began + ends[0][0] if ends else math.inf
        if one.wake_at < first:
            one.advance(one.wake_at)
            continue
        took, task, client = ends.pop(0)
        one.advance(began + took)
        if client in crashed:
            one.lost(task)
        else:
            one.receive(task, Outcome(client, seconds=took))


def ended(step):
    return [task.client for task, _ in step.answers], [task.client for task in step.dropped]


class TestHowRoundsEnd:
    """At the slowest, when enough are there, or at the deadline; never with nothing."""

    def test_when_the_slowest_is_there(self):
        step, waited = play(coordinator(Everybody(), 3), [3.0, 9.0, 5.0])
        assert (ended(step), waited) == (([0, 1, 2], []), 9.0)

    def test_at_the_deadline(self):
        one = coordinator(Everybody(deadline=6.0), 3)
        step, waited = play(one, [3.0, 9.0, 5.0])
        assert (ended(step), waited) == (([0, 2], [1]), 6.0)
        assert [weight for _, weight in step.answers] == [0.5, 0.5], "who is late leaves its weight to the others"
        turn = one.stepped()
        assert (turn.clients, turn.failed, turn.seconds) == ([0, 1, 2], [1], 6.0)
        assert one.view().participations.tolist() == [1, 0, 1]
        assert one.view().delay[1] >= 6.0

    def test_not_later_than_needed(self):
        assert play(coordinator(Everybody(deadline=60.0), 2), [3.0, 5.0])[1] == 5.0

    def test_the_hosts_deadline_counts_too(self):
        assert play(coordinator(Everybody(deadline=60.0), 2, deadline=4.0), [3.0, 5.0])[1] == 4.0

    def test_when_enough_are_there(self):
        step, waited = play(coordinator(Everybody(quorum=2)), [3.0, 9.0, 5.0, 7.0])
        assert (ended(step), waited) == (([0, 2], [1, 3]), 5.0)

    def test_crashes_are_not_enough(self):
        step, waited = play(coordinator(Everybody(quorum=2)), [3.0, 9.0, 5.0, 7.0], crashed=[0])
        assert (ended(step), waited) == (([2, 3], [1]), 7.0)

    def test_fewer_than_are_enough_are_waited_for(self):
        step, waited = play(coordinator(Everybody(quorum=2), 2), [3.0, 9.0], crashed=[1])
        assert (ended(step), waited) == (([0], []), 9.0)

    def test_a_deadline_that_nobody_meets_waits_for_the_first(self):
        one = coordinator(Everybody(deadline=1.0), 3)
        step, waited = play(one, [4.0, 9.0, 6.0], crashed=[])
        assert (ended(step), waited) == (([0], [1, 2]), 4.0)
        one = coordinator(Everybody(deadline=1.0), 3)
        step, waited = play(one, [4.0, 9.0, 6.0], crashed=[0])
        assert (ended(step), waited) == (([2], [1]), 6.0), "a crash is no answer"

    @pytest.mark.parametrize("early", [{"deadline": 4.0}, {"quorum": 1}], ids=["deadline", "quorum"])
    def test_with_sums_not_before_a_sum_can_be_opened(self, early):
        seconds, sums = [3.0, 9.0, 5.0, 7.0], {"aggregation": "sums", "minimum": 3}
        one = coordinator(Everybody(**early), **sums)
        step, waited = play(one, seconds)
        assert (ended(step), waited) == (([0, 2, 3], [1]), 7.0)
        assert one.stepped().seconds == 7.0
        step, waited = play(coordinator(Everybody(**early), **sums), seconds, crashed=[2])
        assert (ended(step), waited) == (([0, 1, 3], []), 9.0), "a crash is no answer"
        step, waited = play(coordinator(Everybody(**early), **sums), seconds, crashed=[2, 3])
        assert (ended(step), waited) == (([0], [1]), 7.0), "the two that are left cannot make a sum"

    def test_where_all_crash_there_is_nothing_to_wait_for(self):
        one = coordinator(Everybody(deadline=1.0), 2)
        step, _ = play(one, [4.0, 9.0], crashed=[0, 1])
        assert step.answers == ()
        turn = one.stepped()
        assert turn.failed == [0, 1]
        assert one.step == 1, "a round without answers is a round"

    def test_late_clients_that_cannot_be_stopped_are_heard_when_they_answer(self, tmp_path):
        one = coordinator(Everybody(deadline=6.0), 3, hear_late=True)
        tasks = one.due(0.0).tasks
        for client, took in ((0, 3.0), (2, 5.0)):
            one.receive(tasks[client].id, Outcome(client, seconds=took), took)
        step = one.due(6.0).step
        assert ended(step) == ([0, 2], [1])
        assert one.stepped().failed == [1]
        assert np.isnan(one.view().delay[1]), "how long it takes will be known"
        one.save(tmp_path)
        one = Coordinator.restore(tmp_path, Everybody(deadline=6.0))
        again = one.due().tasks
        assert [task.client for task in again] == [0, 2], "it is still at work"
        for task in again:
            one.receive(task.id, Outcome(task.client, seconds=1.0), 7.0)
        assert one.receive(tasks[1].id, Outcome(1, seconds=7.0, loss=0.25), 7.0)
        step = one.due().step
        assert ended(step) == ([0, 2], []), "what it trained is not in the step"
        one.stepped()
        assert [task.client for task in one.due().tasks] == [0, 1, 2]
        assert one.log.heard == [1]
        assert one.view().delay[1] > one.view().delay[0]
        assert one.view().loss[1] == 0.25

    def test_late_answers_are_not_heard(self):
        one = coordinator(Everybody(quorum=1), 2)
        tasks = one.due().tasks
        one.receive(tasks[0].id, Outcome(0, seconds=1.0))
        one.due()
        one.stepped()
        assert not one.receive(tasks[1].id, Outcome(1, seconds=2.0))
        assert not one.lost(tasks[1].id)
        assert one.view().participations.tolist() == [1, 0]

    def test_who_leaves_in_flight_is_waited_for_no_more(self):
        one = coordinator(Everybody(), 3)
        tasks = one.due().tasks
        one.receive(tasks[0].id, Outcome(0, seconds=1.0))
        one.receive(tasks[2].id, Outcome(2, seconds=1.0))
        assert not one.due()
        one.leave([1, 2])
        step = one.due().step
        assert [(task.client, weight) for task, weight in step.answers] == [(0, 1.0)]
        one.stepped()
        assert one.clients == (0,)


class TestNewcomers:
    """They have tasks of their own: a scheme's cohort, deadline and prediction are as it made them."""

    def test_lazy_newcomers_measure_beside_the_cohort(self):
        one = coordinator(Known(deadline=20.0), 2, warmup="lazy", warmup_quota=1)
        first = one.due()
        assert [task.kind for task in first.tasks] == ["train"], "nobody is known: the newcomer is the round"
        play(one, {task.client: 10.0 for task in first.tasks}, tasks=first.tasks)
        one.stepped()
        second = one.due()
        assert [(task.kind, task.weight) for task in second.tasks] == [("train", 1.0), ("measure", 0.0)]
        cohort, newcomer = second.tasks
        assert one.progress.until == one.now + 20.0
        one.advance(one.now + 9.0)
        one.receive(cohort.id, Outcome(cohort.client, seconds=9.0))
        step = one.due().step
        assert ended(step) == ([cohort.client], []), "the round does not wait for the newcomer"
        turn = one.stepped()
        assert turn.warmed == [newcomer.client]
        assert turn.why.predicted_seconds == 7.0
        third = one.due()
        assert [task.client for task in third.tasks] == [cohort.client], "it is busy, and asked once"
        one.receive(newcomer.id, Outcome(newcomer.client, seconds=30.0))
        one.receive(third.tasks[0].id, Outcome(cohort.client, seconds=9.0))
        one.due()
        one.stepped()
        assert sorted(task.client for task in one.due().tasks) == [0, 1], "known from when it answered"
        assert one.log.heard == [newcomer.client]

    def test_two_warm_ups_may_overlap(self):
        one = coordinator(Known(), 4, warmup_wait=0.5)
        first = one.due()
        assert first.warmup
        assert len(first.tasks) == 4
        one.receive(first.tasks[0].id, Outcome(0, seconds=1.0))
        assert not one.due()
        one.receive(first.tasks[1].id, Outcome(1, seconds=1.0))
        one.join([4, 5])
        second = one.due()
        assert second.warmup
        assert [task.client for task in second.tasks] == [4, 5]
        one.receive(second.tasks[1].id, Outcome(5, seconds=1.0))
        assert [task.client for task in one.due().tasks] == [0, 1, 5]
        assert {task.client for task in one.tasks if task.kind == "measure"} == {2, 3, 4}

    def test_an_answer_to_an_old_model_is_about_that_model(self):
        one = coordinator(Known(), 2, warmup_wait=0.5)
        warming = one.due().tasks
        one.receive(warming[0].id, Outcome(0, seconds=1.0, loss=3.0))
        for _ in range(2):
            (task,) = one.due().tasks
            one.receive(task.id, Outcome(0, seconds=1.0, loss=1.0))
            one.due()
            one.stepped()
        assert one.task_table.versions == {0}
        one.receive(warming[1].id, Outcome(1, seconds=50.0, loss=2.0))
        one.due()
        assert one.view().loss_step.tolist() == [1, 0]


@dataclass(frozen=True)
class Asking(Everybody):
    """Asks for losses first, and takes the highest."""

    name: ClassVar[str] = "asking"

    def probe(self, state, view, rng):
        return Probe(view.candidates, samples=5)

    def select(self, state, view, rng):
        return Cohort(np.array([int(np.nanargmax(view.loss))]), np.ones(1)), None


def test_probes_are_tasks():
    one = coordinator(Asking(), 3)
    asked = one.due().tasks
    assert {(task.kind, task.probe, task.samples) for task in asked} == {("probe", "loss", 5)}
    one.receive(asked[0].id, Outcome(0, loss=1.0))
    one.receive(asked[1].id, Outcome(1, loss=2.0))
    assert not one.due()
    one.lost(asked[2].id)
    assert [task.client for task in one.due().tasks] == [1]
    assert one.log.probed == [0, 1, 2]


def test_a_policy_without_rounds():
    """Clients of 1, 3 and 10 seconds, a buffer of two: worked out by hand."""
    one = coordinator(Buffered(buffer=2, eager=False), 3)
    pace = [1.0, 3.0, 10.0]
    flying, steps = {}, []
    while len(steps) < 5:
        due = one.due()
        if due.step is not None:
            steps.append((one.now, [(task.client, due.step.number - 1 - task.step) for task, _ in due.step.answers]))
            assert due.step.fresh == all(lag == 0 for _, lag in steps[-1][1])
            one.stepped()
        flying |= {task.id: (one.now + pace[task.client], task.client) for task in due.tasks}
        if not due.tasks:
            when, task = min((when, task) for task, (when, _) in flying.items())
            one.advance(when)
            client = flying.pop(task)[1]
            assert one.receive(task, Outcome(client, seconds=pace[client]))
    assert steps == [
        (3.0, [(0, 0), (1, 0)]),
        (6.0, [(0, 0), (1, 0)]),
        (9.0, [(0, 0), (1, 0)]),
        (10.0, [(2, 3), (0, 0)]),
        (12.0, [(1, 1), (0, 0)]),
    ]
    assert one.view().participations.tolist() == [5, 4, 1]
    assert one.view().loss_step.tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    "policy", [Everybody(quorum=2), Known(), Asking(), Buffered(buffer=2, eager=False)], ids=lambda policy: policy.name
)
def test_saved_at_any_instant_it_goes_on(tmp_path, policy):
    """Two twins, one of which is saved and restored after every event."""
    one, two = (coordinator(policy, 4, warmup_wait=0.5) for _ in range(2))
    seconds, flying = [2.0, 3.0, 5.0, 11.0], {}
    for event in range(25):
        two.save(tmp_path)
        two = Coordinator.restore(tmp_path, policy)
        mine, theirs = one.due(), two.due()
        assert mine.tasks == theirs.tasks, event
        if mine.step is not None:
            assert mine.step.answers == theirs.step.answers
            with pytest.raises(OrderError, match="save"):
                two.save(tmp_path / "refused")
            one.stepped()
            two.stepped()
        flying |= {task.id: (one.now + seconds[task.client], task.client) for task in mine.tasks}
        if not mine:
            when, task = min((when, task) for task, (when, _) in flying.items())
            client = flying.pop(task)[1]
            for twin in (one, two):
                if task in twin.task_table.tasks or twin is two:
                    twin.receive(task, Outcome(client, seconds=seconds[client], loss=1.0 + client), max(when, one.now))
        flying = {task: entry for task, entry in flying.items() if task in one.task_table.tasks}
    assert one.step == two.step > 1
    assert one.view().participations.tolist() == two.view().participations.tolist()


def test_the_order_of_calls():
    one = coordinator(Everybody(), 2)
    with pytest.raises(OrderError, match=r"stepped\(\) came in the phase deciding, but it belongs to stepping"):
        one.stepped()
    tasks = one.due().tasks
    with pytest.raises(InputError, match="client 0's, not 1's"):
        one.receive(tasks[0].id, Outcome(1, seconds=1.0))
    with pytest.raises(InputError, match="the delay of client 0"):
        one.receive(tasks[0].id, Outcome(0, seconds=-1.0))
    assert len(one.tasks) == 2, "a refused answer changes nothing"
    for task in tasks:
        one.receive(task.id, Outcome(task.client, seconds=1.0))
    assert one.due().step is not None
    with pytest.raises(OrderError, match=r"due\(\) came in the phase stepping, .*: make step 1, and call stepped"):
        one.due()
    one.stepped()
    with pytest.raises(InputError, match="backwards"):
        one.due(-1.0)


def test_abandoned_tasks_are_nobodys_fault():
    one = coordinator(Known(), 3, warmup_wait=0.5)
    tasks = one.due().tasks
    one.receive(tasks[0].id, Outcome(0, seconds=1.0))
    one.receive(tasks[1].id, Outcome(1, seconds=1.0))
    one.due()
    one.abandon()
    again = one.due()
    assert again.warmup
    assert [task.client for task in again.tasks] == [2], "who was in flight is asked anew"
