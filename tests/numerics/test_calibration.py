"""Slope and intercept of disagreement over distance: against what made the data, and where pairs are all alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpace._base.errors import InputError
from fedpace.numerics.calibration import MOST, PairSums


@pytest.mark.parametrize(("s", "nu"), [(2.0, 0.0), (0.5, 3.0), (0.0, 1.0), (4.0, 0.2)])
def test_finds_what_made_the_updates(s, nu):
    rng = np.random.default_rng(1)
    points = rng.normal(size=(200, 6)) * rng.uniform(0.2, 2.0, (200, 1))
    common = np.full(5000, 1 / np.sqrt(5000))  # |g| = 1
    direction = np.linalg.qr(rng.normal(size=(5000, 6)))[0].T
    own = np.sqrt(nu / 5000) * rng.normal(size=(200, 5000))
    updates = common + np.sqrt(s) * points @ direction + own
    sums = PairSums.of(updates, points, 1.0)
    slope, intercept = sums.line()
    # Within a few per cent of all disagreement: the belief in equal parts pulls by about that much.
    assert slope * sums.x == pytest.approx(s * sums.x, abs=0.06 * sums.y)
    assert 2 * intercept == pytest.approx(2 * nu, abs=0.06 * sums.y)


def test_is_least_squares_over_pairs():
    rng = np.random.default_rng(2)
    points, updates = rng.normal(size=(9, 2)), rng.normal(size=(9, 3)) * 3
    pairs = [(i, j) for i in range(9) for j in range(i)]
    x = np.array([np.sum((points[i] - points[j]) ** 2) for i, j in pairs])
    y = np.array([np.sum((updates[i] - updates[j]) ** 2) for i, j in pairs]) / 4.0
    sums = PairSums.of(updates, points, 4.0)
    assert (sums.x, sums.y, sums.xx, sums.xy) == pytest.approx((x.mean(), y.mean(), (x * x).mean(), (x * y).mean()))
    slope, intercept = np.polyfit(x, y, 1)
    if slope > 0 and intercept > 0:
        found = sums.line()
        assert found[0] == pytest.approx(slope, rel=0.2)
        assert 2 * found[1] == pytest.approx(intercept, rel=0.2)


def test_pairs_at_one_distance_are_explained_in_equal_parts():
    sums = PairSums(x=2.0, y=6.0, xx=4.0, xy=12.0)
    slope, nu = sums.line()
    assert slope * 2.0 == pytest.approx(3.0)
    assert 2 * nu == pytest.approx(3.0)


def test_clients_with_the_same_data_differ_by_chance_alone():
    assert PairSums.of(np.array([[1.0], [3.0]]), np.zeros((2, 2)), 4.0).line() == (0.0, 0.5)


@pytest.mark.parametrize("closeness", [1e-49, 1e-10, 1e-3])
def test_pairs_that_are_much_alike_say_nothing_of_those_that_are_not(closeness):
    """Clients that claim one moment differ by rounding, or by a little that they add: no slope follows from that."""
    sums = PairSums(x=closeness, y=1.5, xx=1.2 * closeness**2, xy=1.1 * 1.5 * closeness)
    slope, nu = sums.line(2.0)
    assert slope * 2.0 + 2 * nu < 4 * 1.5, "the disagreement of clients in general stays what was seen, about"
    assert nu > 0


def test_pairs_that_are_like_most_are_measured_as_ever():
    sums = PairSums(x=2.0, y=6.0, xx=4.5, xy=12.5)
    assert sums.line(2.4) == sums.line()


@given(st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e3)), min_size=1, max_size=30))
def test_neither_is_ever_negative(pairs):
    x, y = np.array(pairs).T
    sums = PairSums(x.mean(), y.mean(), (x * x).mean(), (x * y).mean())
    for apart in (0.0, 1.0, 1e6):
        s, nu = sums.line(apart)
        assert s >= 0
        assert nu >= 0
        assert np.isfinite([s, nu]).all()


def test_nothing_to_measure():
    assert PairSums.of(np.ones((1, 3)), np.ones((1, 2)), 1.0) is None
    assert PairSums.of(np.ones((2, 3)), np.ones((2, 2)), 0.0) is None
    with pytest.raises(InputError, match="2 and 3"):
        PairSums.of(np.ones((2, 3)), np.ones((3, 2)), 1.0)


def test_large_cohorts_are_thinned():
    rng = np.random.default_rng(3)
    points, updates = rng.normal(size=(4 * MOST, 3)), rng.normal(size=(4 * MOST, 4))
    thin, whole = PairSums.of(updates, points, 1.0), PairSums.of(updates[:MOST], points[:MOST], 1.0)
    assert thin.y == pytest.approx(whole.y, rel=0.1)


@pytest.mark.parametrize("apart", [1e156, 1e256, np.inf])
def test_clients_that_are_too_far_apart_to_square_it_give_no_slope(apart):
    """Moments of 1e-194 beside 1e-66, whitened by the former: squared distances of 1e256."""
    sums = PairSums(x=2.0, y=6.0, xx=4.0, xy=12.0)
    assert sums.line(apart) == (0.0, 3.0)
    assert PairSums(x=1e160, y=6.0, xx=1e300, xy=1e161).line() == (0.0, 3.0)


@pytest.mark.parametrize("size", [1e78, 1e128, 1e200])
def test_pairs_whose_sums_overflow_are_not_measured(size):
    points = np.array([[size, 0.0], [0.0, size], [1.0, 1.0]])
    assert PairSums.of(np.eye(3), points, 1.0) is None
    assert PairSums.of(points, np.eye(3, 2), 1e-300) is None
