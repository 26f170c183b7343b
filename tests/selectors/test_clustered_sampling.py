"""Clustered sampling: similarity, weights and edge cases; `tests/numerics/test_urns.py` has the marginals."""

from __future__ import annotations

import numpy as np
import pytest

from fedpace.selectors.clustered_sampling import ClusteredSampling


@pytest.mark.parametrize("measure", ["angle", "l2", "l1"])
def test_one_from_each_group_of_similar_clients(view, measure):
    updates = np.repeat(np.eye(3), 4, axis=0) + 0.01 * np.random.default_rng(0).standard_normal((12, 3))
    shown = view(12, updates=updates)
    rng = np.random.default_rng(1)
    for _ in range(30):
        cohort, _ = ClusteredSampling(k=3, measure=measure).select(None, shown, rng)
        assert (cohort.clients // 4).tolist() == [0, 1, 2]
        np.testing.assert_allclose(cohort.weights, 1 / 3)


def test_the_angle_ignores_length_and_the_distance_does_not(view):
    updates = np.array([[1, 0], [100, 0], [0, 1], [0, 100.0]])
    rng = np.random.default_rng(1)
    by_angle = [ClusteredSampling(k=2).select(None, view(4, updates=updates), rng)[0] for _ in range(40)]
    assert {tuple(c.clients // 2) for c in by_angle} == {(0, 1)}
    by_length = [ClusteredSampling(k=2, measure="l2").select(None, view(4, updates=updates), rng)[0] for _ in range(40)]
    assert any(tuple(c.clients) == (0, 1) for c in by_length)


def test_angles_are_those_of_arccos(view):
    updates = np.array([[1, 0], [1, 1], [-1, 0], [0, 0], [0, 0], [np.nan, np.nan]])
    angle = ClusteredSampling(k=1)._distances(view(6, updates=updates), np.arange(6))
    right, half = np.pi / 2, np.pi / 4
    np.testing.assert_allclose(
        angle, [half, np.pi, right, right, right, 3 * half, right, right, right, right, right, right, 0, 0, 0]
    )


def test_a_large_client_drawn_from_several_urns_counts_several_times(view):
    shown = view(4, share=[0.1, 0.7, 0.1, 0.1])
    for algorithm in ("size", "similarity"):
        cohort, _ = ClusteredSampling(k=4, algorithm=algorithm).select(None, shown, np.random.default_rng(0))
        weight = dict(zip(cohort.clients.tolist(), cohort.weights.tolist(), strict=True))
        assert weight[1] >= 0.5
        np.testing.assert_allclose(sum(weight.values()), 1)


def test_it_works_without_any_update(view):
    cohort, _ = ClusteredSampling(k=3).select(None, view(8, updates=None), np.random.default_rng(0))
    np.testing.assert_allclose(cohort.weights.sum(), 1)
