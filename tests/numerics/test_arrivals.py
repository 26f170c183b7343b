"""How late answers come, against counting; how long to wait, against simulated rounds and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpace.core.errors import InputError
from fedpace.numerics.arrivals import Lateness, best_deadline


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
    end = best_deadline(delays, weights, points, Lateness.estimated(ratios, np.zeros(60)), scale=0.8)
    assert 0 < end.seconds < math.inf
    taken = delays * rng.choice(ratios, size=(20000, 40))
    there = taken <= end.seconds
    assert np.minimum(taken.max(axis=1), end.seconds).mean() == pytest.approx(end.expected, rel=0.02)
    used = there * weights
    used = used[there.any(axis=1)] / used[there.any(axis=1)].sum(axis=1, keepdims=True)
    errors = 0.8 * ((used @ points) ** 2).sum(axis=1)
    # The mean of a quotient is not the quotient of the means: close is what can be asked for.
    assert errors.mean() == pytest.approx(end.error, rel=0.2)


def test_no_end_is_good_enough():
    lateness = Lateness.estimated([1.0] * 10, [0] * 10)
    assert best_deadline(np.ones(2), np.full(2, 0.5), np.full((2, 1), 2.0), lateness) is None


def test_nothing_seen_is_refused():
    with pytest.raises(InputError, match="expected some ratios"):
        Lateness.estimated([], [])
