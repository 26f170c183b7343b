"""pairwise_heterogeneity against plain NumPy, one pair at a time."""

from __future__ import annotations

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.numerics import pairwise_heterogeneity, regularised_inverse


def by_hand(factors, *, shares=None, ridge=0.0, reference=None):
    moments = [factor.T @ factor for factor in factors]
    width = moments[0].shape[0]
    if reference is None:
        reference = np.average(moments, axis=0, weights=shares)
    inverse = np.linalg.pinv(reference + ridge * np.trace(reference) / width * np.eye(width), hermitian=True)
    return np.array([[np.linalg.norm((a - b) @ inverse, 2) for b in moments] for a in moments])


def random_factors(seed, ranks, width, scale=1.0):
    rng = stream(seed, "factors")
    return [rng.standard_normal((rank, width)) * rng.uniform(0.5, 2, width) * scale / np.sqrt(rank) for rank in ranks]


@pytest.mark.parametrize(
    ("ranks", "width"),
    [((40,) * 6, 12), ((3,) * 8, 12), ((1, 5, 30, 2, 12), 12), ((2,) * 30, 40), ((7, 8), 1), ((20,) * 12, 31)],
)
@pytest.mark.parametrize("ridge", [0.0, 0.05])
def test_every_pair_matches_numpy(ranks, width, ridge):
    factors = random_factors(1, ranks, width)
    np.testing.assert_allclose(
        pairwise_heterogeneity(factors, ridge=ridge), by_hand(factors, ridge=ridge), rtol=1e-3, atol=1e-7
    )


def test_it_is_the_largest_singular_value_not_the_largest_eigenvalue():
    factors = random_factors(2, (3, 3, 3, 3), 6)
    moments = [factor.T @ factor for factor in factors]
    inverse = np.linalg.inv(np.mean(moments, axis=0))
    eigenvalue = np.abs(np.linalg.eigvals((moments[0] - moments[1]) @ inverse)).max()
    assert pairwise_heterogeneity(factors)[0, 1] > 1.05 * eigenvalue


def test_shares_weigh_the_reference():
    factors = random_factors(3, (30,) * 5, 8)
    shares = np.array([0.5, 0.2, 0.2, 0.1, 0.0])
    got = pairwise_heterogeneity(factors, shares=10 * shares)
    np.testing.assert_allclose(got, by_hand(factors, shares=shares), rtol=1e-3)
    assert np.abs(got - pairwise_heterogeneity(factors)).max() > 0.01


def test_a_given_reference_replaces_the_mean():
    factors = random_factors(4, (30,) * 4, 8)
    reference = np.diag(np.linspace(1, 3, 8))
    np.testing.assert_allclose(
        pairwise_heterogeneity(factors, reference=reference), by_hand(factors, reference=reference), rtol=1e-3
    )


def test_dead_features_change_nothing():
    factors = random_factors(5, (20,) * 5, 6)
    dead = [np.insert(factor, [2, 4], 0.0, axis=1) for factor in factors]
    np.testing.assert_allclose(pairwise_heterogeneity(dead), pairwise_heterogeneity(factors), rtol=1e-3)
    np.testing.assert_allclose(pairwise_heterogeneity(dead), by_hand(dead), rtol=1e-3)


def test_a_direction_dead_for_everyone_changes_nothing():
    factors = random_factors(6, (20,) * 5, 6)
    rotation, _ = np.linalg.qr(stream(6, "rotation").standard_normal((9, 9)))
    hidden = [factor @ rotation[:6] for factor in factors]
    np.testing.assert_allclose(pairwise_heterogeneity(hidden), pairwise_heterogeneity(factors), rtol=1e-3)


def test_duplicates_are_at_distance_zero():
    factors = random_factors(7, (5,) * 6, 30)
    factors[3] = factors[0].copy()
    factors[5] = factors[0][::-1].copy()  # the same moment from another factor
    got = pairwise_heterogeneity(factors)
    assert got[0, 3] == 0
    np.testing.assert_allclose(got[0, 5], 0, atol=1e-6 * got.max())
    np.testing.assert_allclose(got, by_hand(factors), rtol=1e-3, atol=1e-6 * got.max())


def test_one_client_and_identical_clients_have_none():
    factor = random_factors(8, (4,), 7)[0]
    np.testing.assert_array_equal(pairwise_heterogeneity([factor]), [[0.0]])
    np.testing.assert_array_equal(pairwise_heterogeneity([factor] * 3), np.zeros((3, 3)))
    np.testing.assert_array_equal(pairwise_heterogeneity([np.zeros((2, 3))] * 2), np.zeros((2, 2)))


@pytest.mark.parametrize("spread", [3, 6])
def test_features_of_very_different_scale(spread):
    scale = np.logspace(-spread / 2, spread / 2, 9)
    factors = random_factors(9, (40,) * 6, 9, scale=scale)
    moments = [factor.T @ factor for factor in factors]
    # Plain NumPy on the scaled problem is itself inaccurate: invert at unit scale and scale back exactly.
    unit = np.linalg.inv(np.mean(moments, axis=0) / np.outer(scale, scale)) / np.outer(scale, scale)
    expected = np.array([[np.linalg.norm((a - b) @ unit, 2) for b in moments] for a in moments])
    np.testing.assert_allclose(pairwise_heterogeneity(factors), expected, rtol=1e-3)


def test_the_whole_scale_does_not_matter():
    factors = random_factors(10, (3,) * 5, 9)
    expected = pairwise_heterogeneity(factors)
    for scale in (1e-60, 1e60):
        np.testing.assert_allclose(
            pairwise_heterogeneity([scale * factor for factor in factors]), expected, rtol=1e-3, atol=1e-7
        )


def test_a_client_without_energy_is_as_far_as_its_partner_is_large():
    factors = [*random_factors(11, (12,) * 3, 5), np.zeros((0, 5))]
    np.testing.assert_allclose(pairwise_heterogeneity(factors), by_hand(factors), rtol=1e-3)


@pytest.mark.parametrize(
    ("factors", "options", "words"),
    [
        ([], {}, "at least one client"),
        ([np.ones((2, 3)), np.ones((2, 4))], {}, "client 0's has 3 columns, client 1's has 4"),
        ([np.ones((2, 3)), np.full((2, 3), np.nan)], {}, "factor of client 1 must be finite"),
        ([np.ones(3)], {}, "2 axes"),
        ([np.ones((2, 3))], {"ridge": -1.0}, "ridge"),
        ([np.ones((2, 3))], {"ridge": np.nan}, "ridge"),
        ([np.ones((2, 3))], {"tol": 0.0}, "tol"),
        ([np.ones((2, 3))], {"shares": [0.0]}, "shares"),
        ([np.ones((2, 3))], {"reference": np.eye(2)}, "3 x 3"),
        ([np.ones((2, 3))], {"reference": np.array([[1.0, 9, 0], [0, 1, 0], [0, 0, 1]])}, "symmetric"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(factors, options, words):
    with pytest.raises(InputError, match=words):
        pairwise_heterogeneity(factors, **options)


def test_the_inverse_is_the_moore_penrose_inverse():
    factor = random_factors(12, (4,), 9)[0] * np.logspace(-1, 1, 9)
    moment = factor.T @ factor
    np.testing.assert_allclose(regularised_inverse(moment), np.linalg.pinv(moment, hermitian=True), rtol=1e-6)
    full = moment + np.eye(9)
    np.testing.assert_allclose(regularised_inverse(full), np.linalg.inv(full), rtol=1e-8, atol=1e-12)
