"""Updates that are far longer than the others', and what a coordinator makes of answers that are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fedpace
from fedpace._base.errors import OrderError
from fedpace.core.hearing import AGAINST
from fedpace.core.screening import REMEMBERED, Screen, compared
from fedpace.core.types import Outcome


def refused(screen, lengths, versions=0, cosines=math.nan):
    return np.flatnonzero(screen.judge(lengths, versions, cosines)).tolist()


def test_what_is_usual_is_the_median():
    screen = Screen(10.0)
    assert refused(screen, [1.0, 1.1, 1.2, 1.3, 9.0]) == []
    times = screen.judge([1.0, 1.2, 200.0, math.inf, math.nan])
    assert (times[:2] == 0).all()
    assert times[2] == pytest.approx(200 / math.sqrt(1.2 * 1.3))
    assert (times[3:] > 1e250).all()
    assert np.isfinite(screen.known).all(), "they are saved"


def test_too_few_lengths_say_nothing():
    screen = Screen(10.0)
    assert refused(screen, [1.0, 1e9]) == []
    assert refused(screen, [1.0, 1.0]) == []
    assert refused(screen, [1.0, 1e9]) == [1]


def test_still_clients_make_nobody_unusual():
    assert refused(Screen(10.0), [0.0, 0.0, 0.0, 5.0]) == []


def test_it_can_be_switched_off():
    assert refused(Screen(0.0), [1.0, 1.0, 1.0, 1e30]) == []
    assert refused(Screen(0.0), [1.0, math.nan, 1.0]) == [1], "what is not finite never counts"


def test_fewer_than_half_cannot_move_what_is_usual():
    screen = Screen(10.0)
    for _ in range(50):
        assert refused(screen, [1.0, 1.1, 0.9, 1e6, 1e6]) == [3, 4]


def test_most_of_a_small_cohort_may_be_hostile():
    screen = Screen()
    for _ in range(6):
        assert refused(screen, [1.0, 1.1, 0.9]) == []
    assert refused(screen, [20.0, 21.0, 1.0]) == [0, 1]


def test_where_everybody_steps_further_the_rule_follows():
    """A learning rate that is raised a hundredfold must not end the training."""
    screen = Screen(10.0)
    screen.judge([1.0] * REMEMBERED)
    assert [len(refused(screen, [100.0] * 8, step)) for step in range(1, 7)] == [8, 0, 0, 0, 0, 0]


def test_a_fleet_whose_lengths_differ_widely_is_not_held_to_the_factor():
    """Clients with a hundred times the data take longer steps: they are no liars."""
    rng = fedpace.stream(0, "wide")
    lengths = rng.lognormal(sigma=1.0, size=400)
    assert lengths.max() > 5 * np.median(lengths)
    screen = Screen()
    found = [place for part in np.split(lengths, 20) for place in refused(screen, part)]
    assert len(found) <= 2  # 3.5 standard deviations of a normal: 0.02 %, and quartiles of 64 are not exact


def test_whoever_points_against_the_others_has_less_room():
    lengths = [1.0, 1.1, 0.9, 1.0, 1.05, 4.0]
    assert refused(Screen(), lengths, cosines=[0.5] * 6) == []
    assert refused(Screen(), lengths, cosines=[0.5] * 5 + [-0.3]) == [5]
    assert refused(Screen(), lengths, cosines=[-0.5] * 5 + [0.3]) == [], "short ones may disagree"


def test_whoever_is_long_and_alone_against_others_that_agree_has_least():
    lengths = [1.0] * 9 + [2.6]
    agree, differ = [0.4] * 9 + [-0.3], [0.1] * 9 + [-0.3]
    assert refused(Screen(), lengths, 0, agree) == [9]
    assert refused(Screen(), lengths, 0, differ) == [], "where clients agree on little, honest ones are as long"
    assert refused(Screen(), lengths, 0, [0.4] * 9 + [-0.05]) == [], "nor is it against them by chance"
    assert refused(Screen(), [1.0] * 9 + [2.2], 0, agree) == []
    assert refused(Screen(), [1.0] * 6, 0, -1.79e308) == [], "cosines that are none overflow nowhere"


def test_replies_to_old_models_are_compared_with_those_to_models_as_old():
    """Updates become shorter as training goes on; who is late is not refused for having begun early."""
    screen = Screen()
    for version in range(40):
        assert refused(screen, [0.9**version * x for x in (0.9, 1.0, 1.1, 1.2)], version) == []
    old, new = 0.9**4, 0.9**40
    assert old / new > 40
    assert refused(screen, [new, new, new, old, 30 * old], [40, 40, 40, 4, 4]) == [4]
    assert refused(screen, [new, old], [40, 40]) == [1], "the same length, told to be of the newest model"


def test_another_order_or_scale_changes_nothing():
    lengths = fedpace.stream(0, "lengths").lognormal(sigma=0.3, size=20)
    lengths[:4] *= 20
    times = Screen().judge(lengths)
    assert (times > 0).sum() == 4
    for scale in (1e-9, 1e9):
        np.testing.assert_allclose(Screen().judge(scale * lengths[::-1])[::-1], times)


def test_cosines_are_with_the_others_of_the_same_version_or_else_of_the_step():
    rng = fedpace.stream(0, "cosines")
    updates = [np.ones(16) + 0.3 * rng.normal(size=16) for _ in range(6)]
    updates[2] = -5 * updates[2]
    versions = [1, 1, 1, 1, 1, 0]
    lengths, cosines = compared(lambda: iter(updates), versions)
    np.testing.assert_allclose(lengths, np.linalg.norm(updates, axis=1))
    units = np.array(updates[:5]) / np.array(lengths[:5])[:, None]
    for place in range(5):
        others = units.sum(axis=0) - units[place]
        assert cosines[place] == pytest.approx(units[place] @ others / np.linalg.norm(others))
    assert cosines[5] > 0, "nobody else replied to its model: it is compared with all of the step"
    assert np.isnan(compared(lambda: iter(updates[:3]), versions[:3])[1]).all(), "too few to say"
    assert (cosines[:5] < 0).tolist() == [False, False, True, False, False]


def test_a_coordinator_says_whom_to_refuse():
    made = coordinator()
    tasks = made.due(0.0).tasks
    for task in tasks:
        made.receive(task.id, Outcome(task.client, seconds=1.0, update=np.ones(4)), now=1.0)
    with pytest.raises(OrderError, match="without a step"):
        made.screen(list)
    made.due(1.0)
    times = made.screen(lambda: [np.ones(8) * (30 if task is tasks[3] else 1) for task in tasks])
    assert list(times) == [tasks[3].id]
    made.refuse(times)
    turn = made.stepped(1.0)
    assert turn.failures == {str(tasks[3].client): "its update is 30 times as long as is usual, which is refused"}
    assert turn.explained(made.clients)["failures"] == turn.failures, "it is recorded"
    known = made.ledger.trust.screen.known
    assert len(known) == 4, "each update counts once, and not again by its sketch"


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


def test_who_answers_most_often_does_not_decide_what_is_usual():
    """Without rounds a fast client may send half of all answers and more: it could raise what is usual step by step."""
    screen, times, length = Screen(), [], 1.0
    for step in range(200):
        times += screen.judge([1.0], step, rows=[1 + step % 5]).tolist()
        for _ in range(4):
            length *= 1.05
            times += screen.judge([length], step, rows=[0]).tolist()
    first = next(place for place, time in enumerate(times) if time)
    assert 1.05 ** (first * 4 / 5) < 12, "it is refused as soon as it is ten times as long as the others"
    assert len(screen.known) <= 6 * 8


def test_before_others_were_heard_no_update_may_go_anywhere():
    screen = Screen()
    assert screen.judge([1e30, 1.0], rows=[0, 1], first=100.0)[0] > 1e20
    assert refused(Screen(), [1e30, 1.0]) == [], "where no limit is given"
    screen.judge([1.0, 1.1, 0.9], rows=[1, 2, 3], first=100.0)
    assert refused(screen, [1e5]) == [0], "by what is usual from now on"
    large = Screen()
    for _ in range(2):
        large.judge([1e6, 1.1e6, 0.9e6, 1.2e6], rows=[0, 1, 2, 3], first=100.0)
    assert not large.judge([1e6], rows=[0], first=100.0).any(), "data whose steps are so long are learnt all the same"
    two = Screen()
    judged = [two.judge([1e6, 1.1e6], rows=[0, 1], first=100.0).any() for _ in range(9)]
    assert judged == [True] * 7 + [False] * 2, "where only two take part, they are heard out"
    alone = [screen.judge([1e6], rows=[0], first=100.0).any() for screen in [Screen()] for _ in range(30)]
    assert all(alone)


@pytest.mark.parametrize("scheme", ["fedasync", "pace-async", "fedbuff"])
def test_a_coordinator_limits_the_first_updates_of_all(scheme):
    made = fedpace.Coordinator(fedpace.make_selector(scheme), fedpace.Settings(seed=0))
    made.join(range(12))
    while (due := made.due(made.now)).step is None:
        task = made.tasks[0]
        made.receive(task.id, Outcome(task.client, seconds=1.0, update=np.ones(4)), made.now + 1)
    first = due.step.answers[0][0]
    times = made.screen(lambda: (np.ones(8) * (1e30 if task is first else 0.1) for task, _ in due.step.answers))
    assert list(times) == [first.id]


def test_lengths_go_with_their_clients():
    screen = Screen()
    screen.judge([1.0, 2.0, 3.0], rows=[0, 1, 3])
    screen.remove(np.array([1]), 4)
    assert screen.known[:, 2].tolist() == [0, -1, 2]


def test_an_answer_turned_round_is_left_out_and_who_does_so_again_is_not_asked():
    """From the first answer on, the model is what the others make it."""
    made = fedpace.Coordinator(fedpace.make_selector("random", k=8), fedpace.Settings(seed=0))
    made.join(range(8))
    left_out = []
    for number in (1.0, 2.0, 3.0):
        tasks = made.due(number - 1).tasks
        for task in tasks:
            made.receive(task.id, Outcome(task.client, seconds=1.0), now=number)
        step = made.due(number).step
        rng = fedpace.stream(int(number), "updates")
        updates = [(-1 if task.client == 5 else 1) * (np.ones(16) + 0.5 * rng.normal(size=16)) for task in tasks]
        why = made.screen(lambda told=updates: iter(told))
        left = made.refuse(why) if why else step
        left_out.append({task.client for task in tasks} - {task.client for task, _ in left.answers})
        assert math.isclose(sum(weight for _, weight in left.answers), 1.0)
        turn = made.stepped(number)
        assert turn.held_off == (["5"] if number == 2.0 else None), "said once, where it changes"
        assert turn.explained(made.clients).get("held off") == turn.held_off
        if why:
            assert turn.failures == {"5": AGAINST}
            assert (made.ledger.trust.columns["refused"] == 0).all()
    assert left_out == [{5}, {5}, set()]
    assert 5 not in {task.client for task in tasks}
    assert made.untrusted == {5}


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e300])
def test_what_is_not_finite_is_called_so(bad):
    made = coordinator()
    tasks = made.due(0.0).tasks
    for task in tasks:
        made.receive(task.id, Outcome(task.client, seconds=1.0), now=1.0)
    made.due(1.0)
    why = made.screen(lambda: [np.full(8, bad if task is tasks[2] else 1.0) for task in tasks])
    assert why == {tasks[2].id: "its update is not finite"}
    made.refuse(list(why))
    assert made.stepped(1.0).failures == {str(tasks[2].client): "refused by the server"}, "no reason was handed on"
