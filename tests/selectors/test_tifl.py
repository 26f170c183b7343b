"""TiFL: tiers, credits and the change of probabilities."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedpace.selectors.tifl import UNKNOWN, Tifl, change_probabilities

DELAY = np.array([50.0, 1, 40, 2, 30, 3, 20, 4, 10, 5])


def test_a_cohort_comes_from_one_tier(view):
    scheme = Tifl(k=2, tiers=5, policy="uniform")
    rng = np.random.default_rng(0)
    state, seen = scheme.init(), np.zeros(5)
    for _ in range(400):
        cohort, state = scheme.select(state, view(10, delay=DELAY), rng)
        tier = cohort.why.facts["tier"]
        seen[tier] += 1
        ranks = np.argsort(np.argsort(DELAY))[cohort.clients]
        assert sorted(ranks.tolist()) == [2 * tier, 2 * tier + 1]
    np.testing.assert_allclose(seen / 400, 0.2, atol=0.07)


def test_credits_bound_how_often_a_tier_comes(view):
    scheme = Tifl(k=2, tiers=5, credits=3)
    rng = np.random.default_rng(0)
    state, tiers = scheme.init(), []
    for _ in range(30):
        cohort, state = scheme.select(state, view(10, delay=DELAY, step=1), rng)
        tiers.append(cohort.why.facts["tier"])
    assert sorted(tiers[:15]) == sorted(list(range(5)) * 3)
    assert sorted(tiers[15:]) == sorted(list(range(5)) * 3)  # all spent: everybody gets new ones


def test_the_worst_tier_gets_the_largest_probability():
    np.testing.assert_allclose(change_probabilities((1.0, 3.0, 2.0, 9.0), [0, 1, 2, 3]), np.array([0, 2, 1, 3]) / 6)
    np.testing.assert_allclose(change_probabilities((1.0, 3.0, 2.0, 9.0), [0, 2]), [0, 0, 1, 0])
    np.testing.assert_allclose(change_probabilities((1.0, 3.0), [1]), [0, 1])


@pytest.mark.parametrize(("before", "changes"), [(5.0, False), (0.5, True)])
def test_probabilities_change_only_if_the_last_tier_did_not_improve(view, before, changes):
    scheme = Tifl(k=1, tiers=2, interval=4)
    shown = view(4, step=4, delay=[1, 2, 3, 4], loss=[1.0, 1.0, 3.0, np.nan])
    state = replace(scheme.init(), last=0, losses=(before, 1.0))
    _, after = scheme.select(state, shown, np.random.default_rng(0))
    assert after.losses == (1.0, 3.0)
    assert after.probabilities == ((0.0, 1.0) if changes else (0.5, 0.5))
    _, between = scheme.select(state, view(4, step=5), np.random.default_rng(0))
    assert between.losses == state.losses


def test_a_tier_of_which_nothing_is_known_is_the_worst(view):
    scheme = Tifl(k=1, tiers=2, interval=1)
    shown = view(4, step=1, delay=[1, 2, 3, 4], loss=[1.0, 1.0, np.nan, np.nan])
    _, after = scheme.select(replace(scheme.init(), last=1), shown, np.random.default_rng(0))
    assert after.losses == (1.0, UNKNOWN)
    assert after.probabilities == (0.0, 1.0)


def test_fewer_clients_than_tiers(view):
    cohort, _ = Tifl(k=3).select(Tifl(k=3).init(), view(4, available=[0, 1, 1, 0]), np.random.default_rng(0))
    assert cohort.clients.size == 1
