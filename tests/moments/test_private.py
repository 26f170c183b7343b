"""The Gaussian mechanism: calibration, sensitivity and noise, each against an independent computation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.moments.factor import gaussian_delta, gaussian_sigma, private_moment


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-5])
def test_sigma_is_the_least_that_keeps_the_promise(epsilon, delta):
    sigma = gaussian_sigma(1.0, epsilon=epsilon, delta=delta)

    def excess(sd):
        """The hockey-stick divergence of N(1, sd) from N(0, sd), integrated numerically."""

        def density(x):
            return max(0.0, norm.pdf(x, 1, sd) - np.exp(epsilon) * norm.pdf(x, 0, sd))

        start = 0.5 + epsilon * sd**2  # where the densities' ratio passes e^epsilon
        return quad(density, start, start + 12 * sd, epsabs=1e-14, limit=200)[0]

    np.testing.assert_allclose(excess(sigma), delta, rtol=1e-4)
    assert excess(0.98 * sigma) > delta
    np.testing.assert_allclose(gaussian_delta(sigma, epsilon), delta, rtol=1e-6)


def test_sigma_scales_with_the_sensitivity_and_beats_the_classical_bound():
    sigma = gaussian_sigma(1.0, epsilon=0.5, delta=1e-5)
    np.testing.assert_allclose(gaussian_sigma(3.0, epsilon=0.5, delta=1e-5), 3 * sigma)
    assert sigma < np.sqrt(2 * np.log(1.25 / 1e-5)) / 0.5
    assert gaussian_sigma(1.0, epsilon=1e-3, delta=1e-9) > gaussian_sigma(1.0, epsilon=300.0, delta=1e-9) > 0


def test_no_neighbour_changes_the_clipped_moment_by_more_than_the_sensitivity():
    rng, clip, samples = stream(0, "neighbours"), 2.0, 10
    worst = 0.0
    for _ in range(300):
        batch = rng.normal(size=(samples, 4)) * rng.uniform(0, 3)
        other = batch.copy()
        other[3] = rng.normal(size=4) * 10.0 ** rng.uniform(-3, 3)
        noiseless = [private_moment(rows, epsilon=1e9, delta=0.5, clip=clip, seed=1).factor for rows in (batch, other)]
        worst = max(worst, float(np.linalg.norm(noiseless[0].T @ noiseless[0] - noiseless[1].T @ noiseless[1])))
    bound = np.sqrt(2) * clip**2 / samples
    assert worst <= bound * (1 + 1e-6)
    assert worst > 0.8 * bound


def test_the_noise_has_the_stated_size():
    width, draws = 3, 1500
    # A large true moment keeps every eigenvalue positive, so that nothing is cut and the noise is visible.
    batch = np.repeat(np.eye(width), 200, axis=0)
    found = [private_moment(batch, epsilon=2.0, delta=1e-3, clip=1.0, seed=seed) for seed in range(draws)]
    noise = np.array([moment.factor.T @ moment.factor for moment in found]) - np.eye(width) / width
    sigma = found[0].sigma
    np.testing.assert_allclose(sigma, gaussian_sigma(np.sqrt(2) / 600, epsilon=2.0, delta=1e-3))
    np.testing.assert_allclose(noise[:, 0, 0].std(), sigma, rtol=0.08)
    np.testing.assert_allclose(noise[:, 0, 1].std(), sigma / np.sqrt(2), rtol=0.08)
    np.testing.assert_allclose(noise.mean(axis=0), 0, atol=5 * sigma / np.sqrt(draws))


def test_noise_that_exceeds_the_moment_still_gives_a_moment():
    moment = private_moment(np.eye(3), epsilon=0.1, delta=1e-3, clip=1.0, seed=0)
    assert np.isfinite(moment.factor).all()
    assert moment.factor.shape[1] == 3


def test_rank_seed_and_record():
    batch = stream(2, "batch").normal(size=(50, 6))
    options = {"epsilon": 1.0, "delta": 1e-4, "clip": 3.0}
    moment = private_moment(batch, seed=5, max_rank=2, **options)
    assert moment.factor.shape == (2, 6)
    assert (moment.epsilon, moment.delta, moment.clip, moment.samples) == (1.0, 1e-4, 3.0, 50)
    np.testing.assert_array_equal(moment.factor, private_moment(batch, seed=5, max_rank=2, **options).factor)
    assert not np.array_equal(moment.factor, private_moment(batch, seed=6, max_rank=2, **options).factor)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"clip": 0.0}, "clip"),
        ({"max_rank": 0}, "max_rank"),
        ({"features": np.full((2, 2), np.nan)}, "finite"),
        ({"features": np.ones((0, 2))}, "at least one row"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(change, words):
    options = {"features": np.ones((3, 2)), "epsilon": 1.0, "delta": 1e-3, "clip": 1.0, "seed": 0} | change
    with pytest.raises(InputError, match=words):
        private_moment(options.pop("features"), **options)
