"""expected_max against Monte Carlo, finite differences and the sum that the paper meant (ERRATA A5)."""

from __future__ import annotations

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.numerics import expected_max


def test_monte_carlo():
    rng = stream(0, "monte-carlo")
    p, delay = rng.dirichlet(np.ones(6)), rng.uniform(1, 9, 6)
    draws = delay[rng.choice(6, size=(200_000, 3), p=p)].max(axis=1)
    error = draws.std() / np.sqrt(len(draws))
    assert abs(expected_max(p, delay, 3).value - draws.mean()) < 5 * error


def test_the_formula_of_the_lemma():
    p, delay, k = np.array([0.2, 0.5, 0.3]), np.array([1.0, 2.0, 4.0]), 4
    cumulative = np.array([0, 0.2, 0.7, 1.0]) ** k
    np.testing.assert_allclose(expected_max(p, delay, k).value, np.diff(cumulative) @ delay)
    np.testing.assert_allclose(expected_max(p[::-1], delay[::-1], k).value, np.diff(cumulative) @ delay)


def test_one_draw_is_the_mean_and_many_draws_the_slowest():
    p, delay = np.array([0.25, 0.25, 0.5]), np.array([3.0, 1.0, 2.0])
    np.testing.assert_allclose(expected_max(p, delay, 1).value, p @ delay)
    np.testing.assert_allclose(expected_max(p, delay, 1000).value, 3.0)


@pytest.mark.parametrize("k", [1, 2, 7])
def test_the_gradient_along_the_simplex(k):
    rng = stream(k, "gradient")
    p, delay = rng.dirichlet(np.full(5, 3.0)), np.array([4.0, 1.0, 4.0, 2.0, 9.0])
    gradient, step = expected_max(p, delay, k).gradient, 1e-6
    for _ in range(10):
        direction = rng.normal(size=5)
        direction -= direction.mean()
        ahead, behind = (expected_max(p + sign * step * direction, delay, k).value for sign in (1, -1))
        np.testing.assert_allclose(gradient @ direction, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-8)
    assert gradient[4] == 0
    assert gradient[0] == gradient[2]


def test_a_vertex_and_a_single_client():
    assert expected_max([0, 1.0, 0], [5.0, 3.0, 9.0], 4).value == 3
    assert expected_max([1.0], [2.0], 3).value == 2
    assert expected_max([1.0], [2.0], 3).gradient.tolist() == [0]


@pytest.mark.parametrize(
    ("p", "delay", "k", "words"),
    [
        ([0.5, 0.6], [1.0, 2.0], 1, "sum to 1"),
        ([1.5, -0.5], [1.0, 2.0], 1, "at least 0"),
        ([1.0], [1.0, 2.0], 1, "expected 2 probabilities"),
        ([0.5, 0.5], [1.0, np.nan], 1, "delay of client 1"),
        ([0.5, np.nan], [1.0, 2.0], 1, "probabilities must be finite"),
        ([0.5, 0.5], [1.0, 2.0], 0, "k must be"),
        ([0.5, 0.5], [1.0, 2.0], 1.5, "k must be"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(p, delay, k, words):
    with pytest.raises(InputError, match=words):
        expected_max(p, delay, k)
