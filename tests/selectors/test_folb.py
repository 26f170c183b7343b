"""FOLB: the same clients asked and chosen, and weights by inner products."""

from __future__ import annotations

import numpy as np
import pytest

from fedpace.selectors.folb import Folb, Key, agreement


@pytest.mark.parametrize("sets", ["one", "two"])
def test_those_asked_are_those_chosen(view, sets):
    scheme = Folb(k=3, sets=sets)
    state = scheme.init()
    rng = np.random.default_rng(0)
    cohorts = set()
    for step in range(12):
        shown = view(10, step=step, available=np.arange(10) != 4)
        probe = scheme.probe(state, shown, np.random.default_rng(step + 100))
        cohort, state = scheme.select(state, shown, rng)
        cohorts.add(tuple(cohort.clients.tolist()))
        if step == 0:
            assert probe is None
            continue
        assert probe.kind == "gradient"
        if sets == "one":
            assert probe.clients.tolist() == cohort.clients.tolist()
        else:
            assert set(cohort.clients.tolist()) <= set(probe.clients.tolist())
            assert 3 <= probe.clients.size <= 6
    assert len(cohorts) > 6


def test_two_seeds_draw_differently_from_the_first_round_on(view):
    runs = []
    for seed in (0, 1):
        rng, state, run = np.random.default_rng(seed), Folb(k=3).init(), []
        for step in range(3):
            cohort, state = Folb(k=3).select(state, view(20, step=step), rng)
            run.append(cohort.clients.tolist())
        runs.append(run)
    assert all(a != b for a, b in zip(*runs, strict=True))


def test_weights_worked_by_hand(view):
    gradients = np.array([[2.0, 0], [2, 2], [-1, 1]])  # mean (1, 1): I = 2, 4, 0
    weights, _ = agreement(gradients, gradients)
    np.testing.assert_allclose(weights, [2 / 6, 4 / 6, 0])
    against = np.array([[3.0, 0], [-1, 0], [1, 0]])  # mean (1, 0): I = 3, -1, 1
    weights, _ = agreement(against, against)
    np.testing.assert_allclose(weights, [3 / 5, -1 / 5, 1 / 5])
    shown = view(3, updates=against)
    cohort, _ = Folb(k=3).select(Key(7), shown, np.random.default_rng(0))
    assert cohort.mode == "delta"
    np.testing.assert_allclose(cohort.weights, [3 / 5, -1 / 5, 1 / 5])
    assert cohort.why.facts["negative_weights"] == 1


def test_the_second_set_gives_the_denominator_within_bounds():
    gradients = np.array([[1.0, 0], [3, 0]])  # mean (2, 0): I = 2, 6
    weights, _ = agreement(gradients, np.array([[2.0, 9], [-3, 1]]))  # |I| = 4, 6
    np.testing.assert_allclose(weights, [0.2, 0.6])
    weights, _ = agreement(gradients, np.array([[1e-6, 9], [0, 1]]))
    np.testing.assert_allclose(np.abs(weights).sum(), 2)


def test_gradients_that_cancel_and_gradients_that_never_came(view):
    cancel = np.array([[1.0, 0], [-1, 0]])
    cohort, _ = Folb(k=2).select(Key(7), view(2, updates=cancel), np.random.default_rng(0))
    np.testing.assert_allclose(cohort.weights, 0.5)
    assert "cancel" in cohort.why.status
    silent = np.array([[1.0, 0], [np.nan, np.nan], [2, 0]])
    cohort, _ = Folb(k=3).select(Key(7), view(3, updates=silent), np.random.default_rng(0))
    assert cohort.clients.tolist() == [0, 2]
    np.testing.assert_allclose(cohort.weights, [1 / 3, 2 / 3])
    cohort, _ = Folb(k=2).select(Key(7), view(3, updates=None), np.random.default_rng(0))
    np.testing.assert_allclose(cohort.weights, 0.5)
