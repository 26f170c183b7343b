"""Whose data cannot be what it says."""

from __future__ import annotations

import numpy as np
import pytest

from fedpace import Coordinator, Outcome, Settings, make_selector, stream
from fedpace.core.claims import COORDINATES, ENOUGH, unlikely, with_own_coordinates
from fedpace.core.trust import Trust

CLIENTS, WIDTH, SKETCH = 40, 12, 30


def fleet(seed, noise=0.3, clients=CLIENTS):
    """Points, and updates that follow from them up to noise."""
    rng = stream(seed, "claims")
    points = rng.normal(size=(clients, WIDTH))
    updates = rng.normal(size=SKETCH) + points @ rng.normal(size=(WIDTH, SKETCH))
    return points, updates + noise * np.sqrt(WIDTH) * rng.normal(size=updates.shape)


@pytest.mark.parametrize("noise", [0.0, 0.3, 1.0, 10.0])
def test_honest_clients_are_believed_however_noisy_updates_are(noise):
    for seed in range(20):
        points, updates = fleet(seed, noise)
        assert not unlikely(updates, points).any()


def test_one_whose_data_are_like_nobodys_is_believed():
    points, updates = fleet(0)
    rng = stream(0, "rare")
    points[3] = 5 * rng.normal(size=WIDTH)
    far = np.zeros((CLIENTS, 1))
    far[3] = 20.0
    points = np.hstack([points, far])
    updates = updates + far @ rng.normal(size=(1, SKETCH))
    assert not unlikely(updates, points).any()


@pytest.mark.parametrize("liars", [1, 4, 8])
def test_those_who_claim_the_mean_are_found(liars):
    for seed in range(10):
        points, updates = fleet(seed)
        points[:liars] = points.mean(axis=0)
        found = np.flatnonzero(unlikely(updates, points))
        assert found.tolist() == list(range(liars))


def test_one_that_claims_anothers_moment_is_told_from_that_one():
    right = 0
    for seed in range(20):
        points, updates = fleet(seed)
        points[5] = points[9]
        found = np.flatnonzero(unlikely(updates, points)).tolist()
        assert len(found) == 1
        right += found == [5]
    assert right >= 16


def test_nobody_is_doubted_where_more_than_half_stand_out():
    points, updates = fleet(1)
    points[: CLIENTS // 2 + 4] = 0.0
    assert not unlikely(updates, points)[CLIENTS // 2 + 4 :].any()


def test_too_few_to_tell_and_nothing_to_tell():
    points, updates = fleet(2, clients=ENOUGH - 1)
    points[0] = 0
    assert not unlikely(updates, points).any()
    assert not unlikely(np.zeros((20, 3)), np.ones((20, 2))).any()
    assert not unlikely(np.ones((20, 3)), stream(0, "x").normal(size=(20, 2))).any()


def test_many_clients_are_compared_in_parts():
    points, updates = fleet(3, clients=700)
    points[[4, 333, 699]] = 0.0
    assert np.flatnonzero(unlikely(updates, points)).tolist() == [4, 333, 699]


def test_own_coordinates():
    points = np.array([[3.0, 0.0], [0.0, 4.0], [9.0, 9.0], [np.nan, np.nan]])
    doubted = np.array([False, False, True, False])
    shares = np.full(4, 0.25)
    found = with_own_coordinates(points, doubted, shares)
    typical = np.sqrt((9 + 16) / 2)
    assert np.isnan(found[3]).all()
    np.testing.assert_allclose(found[:3, :2], [[3, 0], [0, 4], [0, 0]])
    np.testing.assert_allclose(found[:3, 2], typical * (np.array([0, 0, 1]) - 1 / 3))
    assert abs(shares[:3] @ found[:3, 2]) < 1e-12  # the population is where it was
    many = with_own_coordinates(np.ones((1000, 2)), np.arange(1000) % 2 == 0, np.full(1000, 1e-3))
    assert many.shape == (1000, 2 + COORDINATES)


def heard(liar=None, clients=16, trust=True):
    """A coordinator of pace after its warm-up, in which one client claims the mean moment."""
    rng = stream(0, "heard")
    made = Coordinator(make_selector("pace"), Settings(trust=trust, learn_delays=False, moments_every=0))
    made.join(range(clients), delays=[1.0 + client for client in range(clients)])
    factors = [rng.normal(size=(3, 6)) for _ in range(clients)]
    mixing = rng.normal(size=(36, 50))
    for task in made.due(0.0).tasks:
        moment = factors[task.client]
        update = (moment.T @ moment).ravel() @ mixing + 5.0
        if task.client == liar:
            moment = np.vstack(factors) / np.sqrt(clients)
        made.receive(task.id, Outcome(task.client, seconds=1.0 + task.client, moment=moment, update=update))
    return made, made.due(0.0)


def test_pace_does_not_lean_on_a_client_that_claims_to_be_everybody():
    believed, cohort = heard(liar=0, trust=False)
    assert {task.client: task.weight for task in cohort.tasks}[0] > 0.5
    doubting, cohort = heard(liar=0)
    assert np.flatnonzero(doubting.view().doubted).tolist() == [0]
    assert {task.client: task.weight for task in cohort.tasks}.get(0, 0.0) < 0.4
    assert "its moment says" in doubting.at.turn.why.reasons[0]
    assert believed.view().doubted is None


def test_honest_clients_are_shown_as_they_are():
    made, cohort = heard()
    _, expected = heard(trust=False)
    assert made.view().doubted is None
    assert [(task.client, task.weight) for task in cohort.tasks] == [(t.client, t.weight) for t in expected.tasks]


def test_a_moment_that_nobody_asked_for_is_not_taken():
    made, cohort = heard()
    before = made.ledger.moments.factor(cohort.tasks[0].client).copy()
    for task in cohort.tasks:
        made.receive(task.id, Outcome(task.client, seconds=1.0, moment=np.ones((1, 6)), update=np.ones(50)))
    assert made.due(1.0).step is not None
    made.stepped(1.0)
    np.testing.assert_array_equal(made.ledger.moments.factor(cohort.tasks[0].client), before)


def test_doubt_outlives_a_restart_and_another_moment_told(tmp_path):
    made, _ = heard(liar=0)
    made.save(tmp_path)
    restored = Coordinator.restore(tmp_path)
    assert np.flatnonzero(restored.view().doubted).tolist() == [0]
    restored.ledger.trust.weigh({0: np.ones((1, 6))})
    assert restored.ledger.trust.doubted()[0]
    restored.forget_moments()
    assert restored.ledger.trust.doubted() is None


def test_states_from_before_have_compared_nothing():
    trust = Trust()
    trust.append(3)
    saved = {name: column for name, column in trust.arrays().items() if name != "shape"}
    trust.load(saved, 3)
    assert np.isnan(trust.columns["shape"]).all()
