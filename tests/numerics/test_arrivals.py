"""How late answers come, against counting; how long to wait, against simulated rounds and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace._base.errors import InputError
from fedpace.numerics.arrivals import UNBROKEN, Lateness, best_deadline, present, typical


def test_without_giving_up_it_is_the_share_of_answers():
    late = Lateness.estimated([2.0, 1.0, 1.0, 4.0], [False] * 4)
    assert late.within(np.array([0.9, 1.0, 3.0, 4.0])).tolist() == pytest.approx([0.0, 0.5, 0.75, 1.0])


def test_kaplan_and_meier_by_hand():
    """Five clients, given up at 2 and at 4: 4/5 take longer than 1, 4/5 x 2/3 longer than 3, and nobody than 5."""
    late = Lateness.estimated([1.0, 2.0, 3.0, 4.0, 5.0], [False, True, False, True, False])
    longer = 1 - late.within(np.array([1.0, 2.5, 3.0, 4.5, 5.0]))
    assert longer.tolist() == pytest.approx([4 / 5, 4 / 5, 8 / 15, 8 / 15, 0])


@given(st.lists(st.tuples(st.floats(0.1, 10), st.booleans()), min_size=1, max_size=30))
def test_a_distribution_on_what_was_seen(answers):
    ratios, cut = zip(*answers, strict=True)
    late = Lateness.estimated(ratios, cut)
    assert late.mass.sum() == pytest.approx(1.0)
    assert (late.mass >= -1e-12).all()
    assert (np.diff(late.ratios) >= 0).all()


def test_giving_up_does_not_make_clients_look_faster():
    rng = np.random.default_rng(0)
    taken = rng.lognormal(0.0, 0.5, 4000)
    limit = rng.uniform(0.5, 3.0, 4000)
    late = Lateness.estimated(np.minimum(taken, limit), taken > limit)
    at = np.array([0.7, 1.0, 1.5])
    np.testing.assert_allclose(late.within(at), [(taken <= x).mean() for x in at], atol=0.03)


def test_punctual_clients_are_waited_for():
    rng = np.random.default_rng(1)
    points = rng.normal(size=(8, 5)) * 0.3
    delays = np.full(8, 2.0)
    end = best_deadline(
        delays, np.full(8, 1 / 8), points - points.mean(axis=0), Lateness.estimated([1.0] * 10, [0] * 10)
    )
    assert end.seconds == math.inf
    assert end.expected == pytest.approx(2.0)
    assert end.error == pytest.approx(0.0, abs=1e-12)


def test_one_in_ten_that_hangs_is_not_waited_for():
    rng = np.random.default_rng(2)
    points = 0.2 * rng.normal(size=(20, 5))
    end = best_deadline(
        np.full(20, 10.0),
        np.full(20, 0.05),
        points - points.mean(axis=0),
        Lateness.estimated([1.0] * 9 + [30.0], [0] * 10),
    )
    assert end.seconds == pytest.approx(10.0)
    assert end.expected == pytest.approx(10.0)
    assert 0 < end.error < 0.05


def test_whom_the_mixture_needs_is_waited_for():
    """Two clients that only match together: without either the error is 1."""
    points = np.array([[1.0], [-1.0]])
    end = best_deadline(np.ones(2), np.full(2, 0.5), points, Lateness.estimated([1.0] * 5 + [3.0] * 5, [0] * 10))
    assert end.seconds == math.inf


def test_expectations_against_simulated_rounds():
    rng = np.random.default_rng(3)
    delays, weights = rng.uniform(1, 3, 40), rng.dirichlet(np.full(40, 5.0))
    points = 0.5 * rng.normal(size=(40, 4))
    points -= weights @ points
    ratios = rng.lognormal(0.0, 0.6, 60)
    end = best_deadline(delays, weights, points, Lateness.estimated(ratios, np.zeros(60)), own=0.3)
    assert 0 < end.seconds < math.inf
    taken = delays * rng.choice(ratios, size=(20000, 40))
    there = taken <= end.seconds
    assert np.minimum(taken.max(axis=1), end.seconds).mean() == pytest.approx(end.expected, rel=0.02)
    used = there * weights
    used = used[there.any(axis=1)] / used[there.any(axis=1)].sum(axis=1, keepdims=True)
    errors = ((used @ points) ** 2).sum(axis=1) + 0.3 * (used**2).sum(axis=1)
    # The mean of a quotient is not the quotient of the means: close is what can be asked for.
    assert errors.mean() == pytest.approx(end.error, rel=0.2)


def test_no_end_is_good_enough():
    lateness = Lateness.estimated([1.0] * 10, [0] * 10)
    assert best_deadline(np.ones(2), np.full(2, 0.5), np.full((2, 1), 2.0), lateness) is None


def test_nothing_seen_is_refused():
    with pytest.raises(InputError, match="expected some ratios"):
        Lateness.estimated([], [])


# -- clients that take no time -------------------------------------------------------------------------------


def test_waiting_that_is_free_is_for_everybody():
    lateness = Lateness.estimated([0.5, 1.0, 3.0] * 4, [0] * 12)
    points = np.array([[0.3], [-0.3], [0.1]])
    end = best_deadline(np.zeros(3), np.array([0.25, 0.25, 0.5]), points, lateness)
    assert (end.seconds, end.expected, end.arrivals) == (math.inf, 0.0, 3.0)
    assert end.error == pytest.approx(0.05**2)
    assert best_deadline(np.zeros(1), np.ones(1), np.array([[1.5]]), lateness) is None


def test_who_takes_no_time_is_always_there():
    """Two clients that answer at once carry most of the weight; the others are late in half of the rounds."""
    delays = np.array([0.0, 0.0, *[5.0] * 12])
    weights = np.array([0.35, 0.35, *[0.3 / 12] * 12])
    points = 0.1 * np.random.default_rng(0).normal(size=(14, 3))
    end = best_deadline(delays, weights, points - weights @ points, Lateness.estimated([1.0, 40.0] * 6, [0] * 12))
    assert end.seconds == pytest.approx(5.0)
    assert end.arrivals == pytest.approx(2 + 6)


def test_rounds_that_nobody_finishes_bring_nothing():
    """One client that answers after 1 or 1.9 s, as often: half of the rounds of 1 s are for nothing.

    2 s for one that is finished, where waiting takes (1 + 1.9) / 2 = 1.45 s.
    """
    lateness = Lateness.estimated([1.0] * 6 + [1.9] * 5, [0] * 11)
    end = best_deadline(np.ones(1), np.ones(1), np.zeros((1, 2)), lateness)
    assert end.seconds == math.inf


# -- lateness that changes for all at once -------------------------------------------------------------------


def test_the_typical_ratio():
    none = np.zeros(4, dtype=bool)
    assert typical(np.array([3.0, 1.0, 2.0, 4.0]), none) == 2.0
    # Given up early, three say nothing about the others, of which half answered by 5.
    assert typical(np.array([0.1, 0.1, 0.1, 5.0, 6.0]), np.array([1, 1, 1, 0, 0], dtype=bool)) == 5.0
    # Nobody answered, or not half of them: twice the longest wait.
    assert typical(np.array([2.0, 3.0]), ~none[:2]) == 6.0
    assert typical(np.array([1.0, 3.0, 3.0]), np.array([0, 1, 1], dtype=bool)) == 6.0


def test_what_counts_as_the_present():
    assert present(UNBROKEN, 10, arrivals=9.0, finished=8) == UNBROKEN
    assert present(UNBROKEN, 10, arrivals=9.0, finished=0) == 10
    assert present(10, 12, arrivals=9.0, finished=9) == 22
    assert present(22, 12, arrivals=9.0, finished=0) == 12
    # 5 of 30 expected: Chernoff gives exp(-25^2 / 60) = 3e-5; 5 of 12 expected is exp(-49 / 24) = 0.13.
    assert present(UNBROKEN, 40, arrivals=30.0, finished=5) == 40
    assert present(UNBROKEN, 14, arrivals=12.0, finished=5) == UNBROKEN
    assert present(UNBROKEN, 0, arrivals=1.0, finished=0) == UNBROKEN, "nobody was timed: nothing is known of lateness"


def test_a_present_of_its_own_is_what_came_last():
    ratios = np.concatenate([np.linspace(0.5, 1.5, 30), [1.4, 1.4, 4.0, 4.4, 3.6]])
    cut = np.zeros(35, dtype=bool)
    cut[30:32] = True
    late = Lateness.since(ratios, cut, 5)
    # The typical ratio of the five is 4 (product limit: 2/3 at 3.6, 1/3 at 4), and was 1 before.
    assert late.within(np.array([1.9, 4.0])).tolist() == pytest.approx([0, 0.5], abs=0.1)
    assert Lateness.since(ratios, cut, UNBROKEN).within(np.array([1.5]))[0] > 0.8
    many = np.concatenate([ratios[:30], np.full(50, 4.0)])
    assert Lateness.since(many, np.zeros(80), 50).within(np.array([3.9, 4.0])).tolist() == pytest.approx([0, 1])


def test_a_present_that_is_longer_than_memory_is_all_there_is():
    ratios, cut = [1.0, 2.0, 3.0], [0, 1, 0]
    assert Lateness.since(ratios, cut, 300).mass.tolist() == Lateness.estimated(ratios, cut).mass.tolist()
    nobody = Lateness.since([1.0, 2.0], [1, 1], 2)
    assert (nobody.ratios.tolist(), nobody.mass.tolist()) == ([4.0], [1.0]), "twice the longest wait"
    # A large cohort of which next to nobody came: what was before gives the shape, twice the longest wait the scale.
    large = Lateness.since([0.9, 1.0, 1.1] * 10 + [1.2] * 60, [0] * 30 + [0] * 3 + [1] * 57, 60)
    assert large.within(np.array([1.3, 2.3, 2.7])).tolist() == pytest.approx([0.05, 0.4, 1.0], abs=0.1)
    with pytest.raises(InputError, match="at least 1 newest ratio"):
        Lateness.since(ratios, cut, 0)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 12), st.integers(10, 60))
def test_a_deadline_that_nobody_met_is_followed_by_one_twice_as_long(seed, clients, seen):
    rng = np.random.default_rng(seed)
    delays, weights = rng.lognormal(3.0, rng.uniform(0, 1.5), clients), rng.dirichlet(np.ones(clients))
    points = 0.2 * rng.normal(size=(clients, 3))
    points -= weights @ points
    ratios, cut = rng.lognormal(0.0, rng.uniform(0.01, 1.5), seen), rng.random(seen) < 0.2
    fresh, length = UNBROKEN, 0.0
    for _ in range(6):
        end = best_deadline(delays, weights, points, Lateness.since(ratios, cut, fresh))
        assert end is not None
        if math.isinf(end.seconds):
            return
        assert end.seconds >= 2 * length * (1 - 1e-6)
        length = end.seconds
        ratios, cut = np.append(ratios, length / delays), np.append(cut, np.ones(clients, dtype=bool))
        fresh = present(fresh, clients, arrivals=end.arrivals, finished=0)


@pytest.mark.parametrize("sigma", [0.05, 0.5])
def test_deadlines_recover_from_a_slow_down_within_a_few_rounds(sigma):
    """All clients become 4 times slower after round 30, which the delays that are expected of them never show.

    One client in ten hangs for a while, so that there are deadlines at all.
    """
    rng = np.random.default_rng(0)
    delays, weights = rng.uniform(10, 30, 12), np.full(12, 1 / 12)
    points = 0.2 * rng.normal(size=(12, 4))
    points -= points.mean(axis=0)
    ratios, cut, fresh, empty, deadlines = np.ones(0), np.ones(0, dtype=bool), UNBROKEN, [], 0
    for step in range(200):
        end = None
        if ratios.size >= 10:
            end = best_deadline(delays, weights, points, Lateness.since(ratios, cut, fresh))
        length = math.inf if end is None else end.seconds
        taken = delays * rng.lognormal(0.0, sigma, 12) * np.where(rng.random(12) < 0.1, 30.0, 1.0)
        taken *= 4.0 if step >= 30 else 1.0
        late = taken > length
        ratios = np.append(ratios, np.minimum(taken, length) / delays)[-256:]
        cut = np.append(cut, late)[-256:]
        if math.isfinite(length):
            deadlines += 1
            fresh = present(fresh, 12, arrivals=end.arrivals, finished=int((~late).sum()))
            empty.append(late.all())
    assert deadlines > 150
    assert sum(empty) <= 3
