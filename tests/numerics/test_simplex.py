"""The nearest point of a convex hull against brute force over supports, and prefix by prefix."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from mixtures import best_mixture

from fedpace._base.errors import InputError
from fedpace.numerics.simplex import prefix_mixtures


def brute_force(points, most=None):
    """The least squared length over all supports, from the affine minimiser of each that lies inside it."""
    gram = points @ points.T
    best = np.inf
    for size in range(1, (most or len(points)) + 1):
        for support in combinations(range(len(points)), size):
            rows = list(support)
            # min a'Ga with sum a = 1, through the stationarity conditions; singular systems are met by least squares.
            system = np.block([[gram[np.ix_(rows, rows)], np.ones((size, 1))], [np.ones((1, size)), np.zeros((1, 1))]])
            weights = np.linalg.lstsq(system, np.append(np.zeros(size), 1.0), rcond=None)[0][:-1]
            if (weights >= -1e-12).all() and abs(weights.sum() - 1) < 1e-8:
                best = min(best, float(np.sum((weights @ points[rows]) ** 2)))
    return best


def cloud(seed, count, width):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, width)) + rng.uniform(-2, 2)


@pytest.mark.parametrize("seed", range(30))
def test_is_the_least_of_all_supports(seed):
    rng = np.random.default_rng(seed)
    points = cloud(seed, int(rng.integers(1, 8)), int(rng.integers(1, 8)))
    found = best_mixture(points)
    assert found.error == pytest.approx(brute_force(points), abs=1e-7 * np.mean(points**2))


@pytest.mark.parametrize("seed", range(15))
def test_own_coordinates_are_coordinates_that_nobody_shares(seed):
    rng = np.random.default_rng(seed)
    points = cloud(seed, int(rng.integers(1, 7)), int(rng.integers(1, 5)))
    own = float(rng.choice([0.0, 0.01, 1.0, 50.0]))
    spelt_out = np.hstack([points, np.sqrt(own) * np.eye(len(points))])
    found = best_mixture(points, own=own)
    assert found.error == pytest.approx(brute_force(spelt_out), abs=1e-7 * (np.mean(points**2) + own))


def test_own_noise_spreads_the_weight_over_equal_clients():
    found = best_mixture(np.zeros((5, 3)), own=2.0)
    assert found.weights == pytest.approx(np.full(5, 0.2))
    assert found.error == pytest.approx(2.0 / 5)


@pytest.mark.parametrize("own", [-1.0, float("nan"), float("inf")])
def test_own_noise_is_checked(own):
    with pytest.raises(InputError, match="own"):
        best_mixture(np.zeros((2, 2)), own=own)


@given(arrays(np.float64, st.tuples(st.integers(1, 12), st.integers(1, 6)), elements=st.floats(-5, 5, width=16)))
def test_weights_are_a_mixture_that_no_vertex_can_improve(points):
    found = best_mixture(points)
    assert (found.weights > 0).all()
    assert found.weights.sum() == pytest.approx(1)
    assert np.unique(found.clients).size == found.clients.size
    total = found.weights @ points[found.clients]
    assert found.error == pytest.approx(float(total @ total), abs=1e-12)
    slack = 1e-6 * max(1.0, float(np.mean(np.sum(points**2, axis=1))))
    assert (points @ total >= total @ total - slack).all()


def test_duplicates_do_not_break_it():
    points = np.repeat(cloud(3, 4, 3), 3, axis=0)
    assert best_mixture(points).error == pytest.approx(best_mixture(points[::3]).error, abs=1e-7)


def test_every_prefix_is_solved_as_if_alone():
    points = cloud(1, 40, 12)
    order = np.random.default_rng(2).permutation(40)
    for length, found in zip(range(1, 41), prefix_mixtures(points, order, range(1, 41)), strict=True):
        alone = best_mixture(points[order[:length]])
        assert found.error == pytest.approx(alone.error, abs=1e-7)
        assert set(found.clients.tolist()) <= set(order[:length].tolist())


def ill_conditioned(seed):
    """Points that depend on one another, or whose lengths differ by many powers of ten."""
    rng = np.random.default_rng(seed)
    count, width = int(rng.integers(28, 40)), int(rng.integers(3, 40))
    points = rng.standard_normal((count, width))
    if seed % 4 == 1:
        points *= 10.0 ** -rng.uniform(0, 12, size=(1, width))
    elif seed % 4 == 2:
        points = points[rng.integers(0, count // 2, count)] + 1e-10 * points
    elif seed % 4 == 3:
        points *= 1e-17
    return points


@pytest.mark.parametrize("seed", range(120))
def test_rounding_does_not_pile_up(seed):
    """No vertex can improve any prefix, however badly conditioned: |v|^2 <= <v, p_i> for all i."""
    points = ill_conditioned(seed)
    scale = (points**2).sum() / len(points)
    for length, found in enumerate(prefix_mixtures(points, np.arange(len(points)), range(1, len(points) + 1)), start=1):
        assert found.weights.sum() == pytest.approx(1.0)
        nearest = found.weights @ points[found.clients]
        assert nearest @ nearest - (points[:length] @ nearest).min() <= 1e-6 * scale


def test_lengths_may_be_skipped():
    points = cloud(5, 60, 20)
    lengths = [5, 17, 60]
    for length, found in zip(lengths, prefix_mixtures(points, np.arange(60), lengths), strict=True):
        assert found.error == pytest.approx(best_mixture(points[:length]).error, abs=1e-7)


@pytest.mark.parametrize("seed", range(10))
def test_a_budget_is_kept_and_nearly_optimal(seed):
    points = cloud(seed, 9, 5)
    points -= points.mean(axis=0)
    found = best_mixture(points, max_clients=3)
    assert found.clients.size <= 3
    exact = brute_force(points, most=3)
    assert exact - 1e-9 <= found.error <= 2 * exact + 0.15 * np.mean(np.sum(points**2, axis=1))


def test_bad_input_is_refused():
    with pytest.raises(InputError, match="at least one point"):
        best_mixture(np.zeros((0, 3)))
    with pytest.raises(InputError, match="max_clients"):
        best_mixture(np.eye(3), max_clients=0)
