"""Many clients have joined and few have answered: what is made grows with those who answered."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.core.coordinator import Coordinator
from fedpace.core.settings import Settings
from fedpace.core.types import Outcome
from fedpace.moments import MomentBank
from fedpace.moments import bank as bank_module
from fedpace.selectors.pace import Pace

JOINED, ANSWERED = 100_000, 40


def factor(seed, rank=6, width=4):
    return stream(seed, "large").normal(size=(rank, width))


def few_of_many(joined=JOINED, answered=ANSWERED):
    bank = MomentBank(joined)
    for row in range(answered):
        bank.put(row * (joined // answered), factor(row))
    return bank


def dense(answered=ANSWERED):
    return few_of_many(answered, answered)


@pytest.mark.parametrize("what", ["known_heterogeneity", "known_gram"])
def test_few_of_many_are_what_they_are_alone(what):
    large, alone = few_of_many(), dense()
    tracemalloc.start()
    found = getattr(large, what)(ridge=0.1)
    assert tracemalloc.get_traced_memory()[1] < 100e6
    tracemalloc.stop()
    np.testing.assert_array_equal(found, getattr(alone, what)(ridge=0.1))


def test_directions_and_prefixes_of_few_of_many():
    large, alone = few_of_many(), dense()
    rows = np.flatnonzero(large.known)
    np.testing.assert_array_equal(large.directions(ridge=0.1)[rows], alone.directions(ridge=0.1))
    delay = stream(1, "large").uniform(1, 9, JOINED)
    found, expected = (
        bank.best_prefix(tau, ridge=0.1, target=0.5) for bank, tau in ((large, delay), (alone, delay[rows]))
    )
    assert found.clients.tolist() == rows[expected.clients].tolist()
    assert found.objective == expected.objective


def test_a_matrix_over_all_that_joined_is_refused_with_what_to_ask_instead():
    with pytest.raises(InputError, match=r"100,000 clients is a matrix of 80\.0 GB.*known_heterogeneity"):
        few_of_many().heterogeneity(ridge=0.1)


def test_a_step_of_a_hundred_thousand_clients():
    coordinator = Coordinator(Pace(), Settings(seed=1))
    coordinator.join(list(range(JOINED)))
    present, now = list(range(ANSWERED)), 0.0
    tracemalloc.start()
    while coordinator.step < 2:
        due = coordinator.due(now, present)
        if due.step is not None:
            coordinator.stepped(now)
            continue
        now += 1.0
        for task in due.tasks or coordinator.tasks:
            seed = int(task.client)
            outcome = Outcome(
                task.client, seconds=1.0, loss=1.0, samples=10, moment=factor(seed), update=factor(seed, 1, 8)[0]
            )
            coordinator.receive(task.id, outcome, now)
    assert tracemalloc.get_traced_memory()[1] < 500e6
    tracemalloc.stop()


def test_above_the_stated_size_distances_come_from_sketches(monkeypatch):
    pytest.importorskip("faiss")
    exact, sketched = dense(), dense()
    delay = stream(1, "large").uniform(1, 9, ANSWERED)
    expected = exact.best_prefix(delay, ridge=0.1, target=0.5)
    monkeypatch.setattr(bank_module, "MAX_EXACT_CLIENTS", ANSWERED - 1)
    found = sketched.best_prefix(delay, ridge=0.1, target=0.5)
    assert found.objective == pytest.approx(expected.objective, rel=0.5)
    B, estimate = exact._distances.matrix(), sketched.known_heterogeneity(ridge=0.1)
    assert np.corrcoef(B.ravel(), estimate.ravel())[0, 1] > 0.8
    points = sketched.directions(ridge=0.1)
    np.testing.assert_allclose(sketched.known_gram(ridge=0.1), points @ points.T)
    restored = MomentBank()
    restored.load(sketched.arrays())
    np.testing.assert_array_equal(restored.known_heterogeneity(ridge=0.1), estimate)


def test_directions_of_many_among_very_many_are_sketches(monkeypatch):
    bank = few_of_many(1000)
    exact = bank.directions(ridge=0.1)
    monkeypatch.setattr(bank_module, "MAX_ROOT_ENTRIES", 1000)
    sketched = bank.directions(ridge=0.1 + 1e-12)
    assert sketched.shape[1] > exact.shape[1], "the entries of a moment, where the root has as many as its rank"
    rows = np.flatnonzero(bank.known)
    np.testing.assert_allclose(sketched[rows] @ sketched[rows].T, exact[rows] @ exact[rows].T, atol=1e-6)
