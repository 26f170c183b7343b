"""Oort: a hand-worked score, exploration, the pacer and over-commitment."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace.selectors.oort import Oort, Pacer, penalty, preferred_delay, scores, sizes


def test_a_score_worked_by_hand():
    # Utilities 1, 3, 5, round 9; last seen in rounds 1, 4, 8; the third is twice as slow as allowed, alpha = 2.
    # ln 9 = 2.197225; sqrt(0.1 x 2.197225 / L) = 0.468746, 0.234373, 0.165727.
    # (1-1)/4 + 0.468746 = 0.468746; (3-1)/4 + 0.234373 = 0.734373; (1 + 0.165727) / 4 = 0.291432.
    slowdown = penalty(np.array([5.0, 10, 20]), 10.0, 2.0)
    np.testing.assert_allclose(slowdown, [1, 1, 0.25])
    got = scores(np.array([1.0, 3, 5]), last=np.array([1, 4, 8]), now=9, slowdown=slowdown, clip=1.0)
    np.testing.assert_allclose(got, [0.468746, 0.734373, 0.291432], atol=1e-6)


def test_outlying_utilities_are_cut_off():
    utility = np.append(np.arange(1.0, 10), 1000)
    got = scores(utility, last=np.ones(10), now=1, slowdown=np.ones(10), clip=0.8)
    assert got[9] == got[8] == pytest.approx((9 - 1) / 999)


def test_the_preferred_delay():
    delay = np.array([50.0, 10, 40, 20, 30])
    assert [preferred_delay(delay, p) for p in (10, 20, 50, 99, 100)] == [10, 20, 30, 50, math.inf]


def test_exploited_clients_are_above_the_cut_off(view):
    # Shares equal, so U ~ loss; scores 0, ..., 1 without staleness in round 1. Third best 0.7, cut-off 0.7 x 0.7.
    shown = view(11, step=0, loss=np.linspace(1, 2, 11), loss_step=np.zeros(11), delay=np.ones(11))
    scheme = Oort(k=4, epsilon=0.2, overcommit=1.0)
    counts = np.zeros(11)
    rng = np.random.default_rng(0)
    for _ in range(3000):
        cohort, _ = scheme.select(Pacer(0.0, 10.0), shown, rng)
        counts[cohort.clients] += 1
    assert (counts[:5] == 0).all()
    assert (counts[5:] > 0).all()
    assert (np.diff(counts[5:]) > 0).all()


def test_exploration_decays_and_prefers_fast_unseen_clients(view):
    seen = np.arange(40) < 20
    delay = np.where(np.arange(40) < 30, 1.0, 1000.0)
    shown = view(40, participations=seen, loss=np.where(seen, 1.0, np.nan), delay=delay)
    scheme = Oort(k=10, overcommit=1.0, epsilon=0.5, threshold=50.0, window=2.0)
    state = scheme.init()
    rng = np.random.default_rng(0)
    epsilons = []
    for _ in range(30):
        cohort, state = scheme.select(state, shown, rng)
        facts = cohort.why.facts
        epsilons.append(facts["epsilon"])
        assert facts["explored"] == round(10 * facts["epsilon"])
        assert facts["explored"] + facts["exploited"] == 10
        new = cohort.clients[~seen[cohort.clients]]
        assert (delay[new] == 1).all()  # the best 2 x 5 prospects are exactly the ten fast ones
    np.testing.assert_allclose(epsilons[:3], [0.5, 0.475, 0.45125])
    assert epsilons[-1] == scheme.epsilon_least


def test_samples_count_also_where_shares_are_equal(view):
    """U = samples x loss: half the loss on ten times the data is five times the utility."""
    samples = np.array([10.0, 10, 10, 100, np.nan])
    shown = view(5, loss=[1.0, 1, 1, 0.5, 1], delay=np.ones(5), samples=samples, participations=np.ones(5))
    np.testing.assert_allclose(sizes(shown), [10, 10, 10, 100, 32.5])
    rng = np.random.default_rng(0)
    picks = [Oort(k=1, overcommit=1.0).select(Pacer(0.0, 100.0), shown, rng)[0].clients.tolist() for _ in range(50)]
    assert picks == [[3]] * 50
    np.testing.assert_allclose(sizes(view(5)), 0.2)


def test_while_nobody_is_new_a_part_is_drawn_at_random(view):
    shown = view(40, delay=np.ones(40), participations=np.ones(40))
    cohort, _ = Oort(k=10, overcommit=1.0).select(Pacer(0.4, 100.0), shown, np.random.default_rng(0))
    assert (cohort.why.facts["exploited"], cohort.why.facts["explored"], cohort.clients.size) == (6, 0, 10)
    assert sum(reason == "filled up at random" for reason in cohort.why.reasons.values()) == 4


def test_nobody_seen_yet_everybody_seen(view):
    scheme = Oort(k=3, overcommit=1.0)
    fresh = view(6, step=0, participations=np.zeros(6), loss=np.full(6, np.nan), loss_step=np.full(6, -1))
    cohort, _ = scheme.select(scheme.init(), fresh, np.random.default_rng(0))
    assert cohort.clients.size == 3
    cohort, _ = scheme.select(scheme.init(), view(3), np.random.default_rng(0))
    assert cohort.clients.tolist() == [0, 1, 2]


def test_over_commitment_asks_for_more_and_waits_for_k(view):
    shown = view(30)
    cohort, _ = Oort(k=10).select(Oort(k=10).init(), shown, np.random.default_rng(0))
    assert cohort.clients.size == 13
    assert cohort.quorum == 10
    assert cohort.why.predicted_seconds == np.sort(shown.delay[cohort.clients])[9]
    plain, _ = Oort(k=10, overcommit=1.0).select(Oort(k=10).init(), shown, np.random.default_rng(0))
    assert (plain.clients.size, plain.quorum) == (10, 0)
    few, _ = Oort(k=10).select(Oort(k=10).init(), view(10), np.random.default_rng(0))
    assert (few.clients.size, few.quorum) == (10, 0)


@pytest.mark.parametrize(
    ("loss", "thresholds"),
    [
        # Utility steady: up by 5 at rounds 4, 6, ... ; ten times as high from round 4 on: down once at round 6.
        (lambda step: 1.0, [10, 10, 10, 10, 15, 15, 20, 20, 25]),
        (lambda step: 1.0 if step <= 4 else 10.0, [10, 10, 10, 10, 15, 15, 10, 10, 15]),
        (lambda step: 0.7**step, [10] * 9),
    ],
)
def test_the_pacer(view, loss, thresholds):
    scheme = Oort(k=2, pacer_step=2, pacer_delta=5.0, overcommit=1.0)
    state = scheme.init()
    rng = np.random.default_rng(0)
    got = []
    for step in range(9):
        # Clients 0 and 1 took part in the round before, 1 for the first time: only 0 was exploited.
        shown = view(
            6,
            step=step,
            loss=[loss(step), 1e6, 1, 1, 1, 1],
            loss_step=[step - 1, step - 1, 0, 0, -1, -1],
            participations=[2, 1, 3, 4, 5, 6],
        )
        if step == 1:
            shown = view(
                6,
                step=1,
                loss=[loss(1), 1e6, 1, 1, 1, 1],
                loss_step=[0, 0, -1, -1, -1, -1],
                participations=[2, 1, 0, 0, 0, 0],
            )
        cohort, state = scheme.select(state, shown, rng)
        got.append(cohort.why.facts["threshold"])
    assert got == thresholds


def test_options_are_checked():
    with pytest.raises(InputError, match="epsilon_least"):
        Oort(epsilon=0.1)
    with pytest.raises(InputError, match="clip of oort"):
        Oort(clip=0.0)
