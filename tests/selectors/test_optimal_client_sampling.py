"""Optimal client sampling: the coins, the weights, and what happens when nobody is drawn."""

from __future__ import annotations

import numpy as np
import pytest

from fedpace.numerics.sampling import optimal_inclusion
from fedpace.selectors.optimal_client_sampling import OptimalClientSampling

RNG = np.random.default_rng(0)


def test_clients_come_as_often_as_their_probability_says(view):
    share = np.array([0.1, 0.2, 0.3, 0.4])
    shown = view(4, share=share, updates=np.diag([1.0, 8.0, 1.0, 0.5]))
    p = optimal_inclusion(share * [1, 8, 1, 0.5], 2)
    nobody = np.prod(1 - p)
    assert nobody == 0  # client 1 is certain
    rng = np.random.default_rng(1)
    hits = np.zeros(4)
    for _ in range(4000):
        cohort, _ = OptimalClientSampling(k=2).select(None, shown, rng)
        hits[cohort.clients] += 1
        np.testing.assert_allclose(cohort.weights, share[cohort.clients] / p[cohort.clients])
        assert cohort.mode == "delta"
    np.testing.assert_allclose(hits / 4000, p, atol=0.03)
    assert cohort.why.facts["certain_clients"] == 1


def test_nobody_drawn_means_a_new_draw_with_smaller_weights(view):
    # Three equal clients, k = 1: p = 1/3, nobody with (2/3)^3.
    shown = view(3, updates=np.ones((3, 2)))
    cohort, _ = OptimalClientSampling(k=1).select(None, shown, np.random.default_rng(0))
    np.testing.assert_allclose(cohort.weights, (1 / 3) / (1 / 3) * (1 - (2 / 3) ** 3))
    np.testing.assert_allclose(cohort.why.facts["chance_of_nobody"], (2 / 3) ** 3)
    rng = np.random.default_rng(2)
    assert all(OptimalClientSampling(k=1).select(None, shown, rng)[0].clients.size for _ in range(200))


def test_weights_are_not_renormalised_over_those_drawn(view):
    shown = view(30, share=np.random.default_rng(0).dirichlet(np.ones(30)))
    rng = np.random.default_rng(3)
    sums = np.array([OptimalClientSampling(k=5).select(None, shown, rng)[0].weights.sum() for _ in range(3000)])
    assert sums.std() > 0.05
    assert abs(sums.mean() - 1) < 4 * sums.std() / np.sqrt(sums.size)


def test_the_two_methods_and_the_two_sources(view):
    norms = 10.0 ** -np.arange(8)
    exact = OptimalClientSampling(k=6).probabilities(norms)
    rough = OptimalClientSampling(k=6, method="aocs").probabilities(norms)
    assert np.abs(exact - rough).max() > 0.1
    asked = OptimalClientSampling(k=2).probe(None, view(4, available=[1, 1, 0, 1]), RNG)
    assert (asked.kind, asked.clients.tolist()) == ("gradient", [0, 1, 3])
    assert OptimalClientSampling(k=2, norms="last").probe(None, view(4), RNG) is None


def test_updates_of_zero_are_drawn_evenly(view):
    cohort, _ = OptimalClientSampling(k=4).select(None, view(4, updates=np.zeros((4, 2))), RNG)
    assert cohort.clients.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(cohort.weights, 0.25)


@pytest.mark.parametrize("gone", [[0], [1, 2]])
def test_the_step_does_not_shrink_when_some_are_away(view, gone):
    available = np.ones(5, bool)
    available[gone] = False
    updates = np.where(available[:, None], np.ones((5, 2)), np.nan)
    cohort, _ = OptimalClientSampling(k=5).select(None, view(5, available=available, updates=updates), RNG)
    np.testing.assert_allclose(cohort.weights.sum(), 1)
