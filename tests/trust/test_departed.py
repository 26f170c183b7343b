"""Leaving and joining again must not give a client more influence, neither under its id nor under a new one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace import Coordinator, Outcome, Settings
from fedpace._base.errors import InputError
from fedpace.selectors.random import Random
from fedpace.trust import Trust
from fedpace.trust.departed import Departed, Record
from fedpace.trust.limits import MAX_DEPARTED, WEIGHT_BURST, WEIGHT_RATE

FLEET = 40


def fleet():
    trust = Trust()
    trust.append(range(FLEET))
    return trust


def alone(trust, row, step):
    """Let one client ask for the whole weight of a step; return the weight that it got."""
    rows, shares = np.array([row]), np.full(len(trust), 1 / len(trust))
    weights = trust.bound_weights(rows, np.ones(1), shares, step)
    trust.observe(rows, weights, shares, step)
    return float(weights.sum())


@pytest.mark.parametrize("new_id", [False, True])
@given(st.lists(st.booleans(), min_size=60, max_size=60))
@settings(max_examples=30, deadline=None)
def test_leaving_and_joining_again_gains_no_weight(new_id, leaves):
    trust, name = fleet(), "liar"
    trust.append([name])
    total = 0.0
    for step, goes in enumerate(leaves, start=1):
        total += alone(trust, FLEET, step)
        if goes:
            trust.remove(np.array([FLEET]), [name])
            name = f"liar {step}" if new_id else name
            trust.append([name])
    assert total <= WEIGHT_BURST + WEIGHT_RATE * len(leaves) / (FLEET + 1) + 1e-9


def test_a_client_gets_its_own_bucket_back_even_if_a_newcomer_took_it_over():
    trust = fleet()
    for step in range(1, 4):
        alone(trust, 7, step)
    used = trust.columns["weight_used"][7]
    assert used > 2
    trust.remove(np.array([7]), [7])
    trust.append(["new", "newer"])
    assert trust.columns["weight_used"][-2:].tolist() == [used, 0.0], "one bucket was left, so one is taken over"
    trust.append([7])
    assert trust.columns["weight_used"][-1] == used


def test_a_rest_outlives_a_departure_but_is_not_passed_on():
    trust = fleet()
    trust.observe_verdicts(np.array([3, 4]), np.array([False, False]), 0)
    everybody = np.ones(FLEET, dtype=np.bool_)
    assert not trust.admitted(everybody, 2)[3]
    trust.remove(np.array([3]), [3])
    trust.append(["new"])
    assert trust.admitted(everybody, 2)[-1]
    trust.remove(np.array([FLEET - 1]), ["new"])
    trust.append([3])
    assert not trust.admitted(everybody, 2)[-1]


def test_only_what_matters_is_remembered_and_not_for_ever():
    departed = Departed()
    departed.leave("never asked", Record())
    assert not departed.records
    for client in range(MAX_DEPARTED + 5):
        departed.leave(client, Record(1.0, float(client)))
    assert len(departed.records) == MAX_DEPARTED
    assert 4 not in departed.records
    assert 5 in departed.records


def step_with(coordinator, now):
    """Make one step in which all tasks are answered."""
    due = coordinator.due(now)
    for task in due.tasks:
        coordinator.receive(task.id, Outcome(task.client, seconds=1.0), now)
    assert coordinator.due(now + 1).step is not None
    coordinator.stepped(now + 1)


def test_a_restored_coordinator_remembers_who_left(tmp_path):
    made = Coordinator(Random(k=1), Settings(seed=0))
    made.join(range(30))
    for step in range(4):
        step_with(made, float(step))
    used = dict(zip(made.clients, made.ledger.trust.columns["weight_used"].tolist(), strict=True))
    spoke = next(client for client in made.clients if used[client] > 0)
    made.leave([spoke])
    made.save(tmp_path / "state")
    for again in (made, Coordinator.restore(tmp_path / "state")):
        again.join([spoke])
        assert again.ledger.trust.columns["weight_used"][-1] == used[spoke]


@pytest.mark.parametrize("numbers", [[1.0], [1.0, -1.0, 0.0, 0.0], [float("nan")] * 4, [float("inf")] * 4])
def test_damaged_records_are_refused(numbers):
    with pytest.raises(InputError, match="start anew"):
        Departed().load([("a", numbers, False)])
