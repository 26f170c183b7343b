"""The first steps where nobody is waited for: who made them, and whether training begins again."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpace import Coordinator, Outcome, Settings, make_selector, stream
from fedpace._base.errors import InputError
from fedpace.core.beginning import ENOUGH, Beginning, opposed

CLIENTS, WIDTH = 20, 16


def updates(clients=CLIENTS, seed=0, own=1.0):
    """What honest clients do to the first model: what all want, and what is their own."""
    rng = stream(seed, "beginning")
    shared = rng.normal(size=WIDTH)
    return shared / np.linalg.norm(shared) + own * rng.normal(size=(clients, WIDTH)) / np.sqrt(WIDTH)


@pytest.mark.parametrize("own", [0.0, 0.5, 1.0])
def test_honest_clients_are_not_opposed(own):
    assert not any(opposed(updates(seed=seed, own=own)).any() for seed in range(50))


@pytest.mark.parametrize("factor", [-0.1, -1.0, -10.0, -1e200])
def test_a_minority_that_works_against_the_others_is_found(factor):
    told = updates(own=0.5)
    told[:7] *= factor
    assert np.flatnonzero(opposed(told)).tolist() == list(range(7))


@pytest.mark.parametrize(("own", "width"), [(1.5, WIDTH), (3.0, WIDTH), (1.0, 3), (0.5, 2), (2.0, 64)])
def test_honest_clients_whose_data_differ_much_are_not_opposed(own, width):
    """A third of them may point against the main direction of a heterogeneous fleet, or of a small model."""
    found = 0
    for seed in range(50):
        rng = stream(seed, "differing")
        shared = rng.normal(size=width)
        told = shared / np.linalg.norm(shared) + own * rng.normal(size=(CLIENTS, width)) / np.sqrt(width)
        found += int(opposed(told).sum())
    assert found <= 1, "of 1,000"


def test_nobody_is_judged_where_clients_do_not_agree():
    assert not opposed(stream(1, "noise").normal(size=(CLIENTS, 200))).any()
    assert not opposed(np.zeros((CLIENTS, 4))).any()
    assert not opposed(-updates(ENOUGH - 1)).any()


def begun(liars, *, trust=True):
    """A federation of pace-async whose fastest clients, the first rows, reverse their updates."""
    made = Coordinator(make_selector("pace-async"), Settings(trust=trust, learn_delays=False, moments_every=0))
    made.join(range(CLIENTS), delays=[1.0 + client for client in range(CLIENTS)])
    told = updates(own=0.5)
    told[list(liars)] *= -1
    rng, now, afresh = stream(0, "moments"), 0.0, None
    flying = {task.id: task for task in made.due(0.0).tasks}
    for _ in range(400):
        task = min(flying.values(), key=lambda task: (task.began + 1.0 + task.client, task.id))
        now = max(now, task.began + 1.0 + task.client)
        made.receive(
            task.id,
            Outcome(task.client, seconds=1.0 + task.client, moment=rng.normal(size=(4, 3)), update=told[task.client]),
            now,
        )
        due = made.due(now)
        if due.step is not None:
            turn = made.stepped(now, facts={"square": 1.0})
            if due.step.afresh:
                assert "begins again" in turn.why.status
                afresh = due.step
        flying = {task.id: task for task in made.tasks}
        if afresh or made.ledger.trust.beginning.over:
            return made, afresh
    return made, afresh


def test_training_begins_again_where_liars_made_the_first_steps():
    made, afresh = begun(range(4))
    assert afresh is not None
    assert not any(weight for _, weight in afresh.answers)
    assert np.flatnonzero(~made.ledger.trust.admitted(np.ones(CLIENTS, dtype=bool))).tolist() == [0, 1, 2, 3]
    assert {task.client for task in made.tasks} == set(range(4, CLIENTS))  # all others, with the model that it is now
    assert {task.step for task in made.tasks} == {made.step}


def test_honest_runs_and_runs_that_believe_do_not():
    made, afresh = begun([])
    assert afresh is None
    assert made.ledger.trust.weight().min() == 1
    assert begun(range(4), trust=False)[1] is None


def test_few_liars_are_found_and_the_model_is_kept():
    made, afresh = begun([9])
    assert afresh is None
    assert made.ledger.trust.weight()[9] < 0.6
    assert all(task.client != 9 for task in made.tasks)


@pytest.mark.parametrize(("liars", "trust", "asked"), [(4, True, range(4, CLIENTS)), (4, False, range(CLIENTS))])
def test_in_rounds_a_warm_up_tells_who_works_against_most_others(liars, trust, asked):
    """The fastest would make a cohort of their own, in which they agree with one another."""
    made = Coordinator(make_selector("pace"), Settings(trust=trust, learn_delays=False))
    made.join(range(CLIENTS), delays=[1.0 + client for client in range(CLIENTS)])
    told, rng = updates(own=0.5), stream(0, "moments")
    told[:liars] *= -1
    for task in made.due(0.0).tasks:
        made.receive(task.id, Outcome(task.client, 1.0, moment=rng.normal(size=(4, 3)), update=told[task.client]), 1.0)
    started = {task.client for task in made.due(1.0).tasks}
    assert started <= set(asked)
    assert np.flatnonzero(made.view().share).tolist() == list(asked)
    known = made.ledger.tables["updates"]
    assert np.flatnonzero(~np.isnan(known).any(axis=1)).tolist() == list(asked)


def test_nobody_waits_for_what_was_in_hand_of_who_is_not_trusted_any_more():
    made = Coordinator(make_selector("fedbuff", buffer=4), Settings())
    made.join(range(CLIENTS))
    tasks = list(made.due(0.0).tasks)
    for task in tasks[:3]:
        made.receive(task.id, Outcome(task.client, seconds=1.0), 1.0)
    assert made.due(1.0).step is None
    made.ledger.trust.refuse([made.ledger.row(tasks[0].client)] * 2)
    made._lose(made.untrusted)
    assert made.flight.held == 2
    made.receive(tasks[3].id, Outcome(tasks[3].client, seconds=1.0), 2.0)
    assert made.sated, "one answer was missing, and it came"


def test_what_was_heard_outlives_a_restart_and_leaving():
    beginning = Beginning()
    beginning.append(4)
    beginning.hear(1, np.arange(3.0))
    beginning.hear(1, np.ones(3))  # its first answer counts
    beginning.hear(2, np.ones(5))  # of another width
    beginning.led[1] = 0.5
    saved = beginning.arrays()
    other = Beginning()
    other.append(4)
    other.load(saved, 4)
    other.remove(np.array([0]))
    np.testing.assert_array_equal(other.sketches[0], np.arange(3.0))
    assert math.isnan(other.sketches[1, 0])
    assert other.led.tolist() == [0.5, 0.0, 0.0]
    assert not other.over
    with pytest.raises(InputError, match="how training began"):
        other.load(saved, 5)
    other.load({}, 3)
    assert other.over
