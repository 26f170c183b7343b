"""Even, power-law and paired Dirichlet splits, and rotations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.data._public_sets import (
    dirichlet_partition,
    dirichlet_split,
    iid_partition,
    power_law_shares,
    rotate,
    sized_partition,
)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 12), st.floats(0, 5), st.integers(0, 50))
def test_sized_parts_use_every_sample_once_and_nobody_is_empty(samples, clients, exponent, seed):
    clients = min(clients, samples)
    shares = power_law_shares(clients, exponent, stream(seed))
    assert shares.sum() == pytest.approx(1)
    parts = sized_partition(samples, shares, stream(seed))
    assert sorted(np.concatenate(parts).tolist()) == list(range(samples))
    sizes = np.array([part.size for part in parts])
    assert sizes.min() >= 1
    # Each size is its share of what is left after one each, rounded down or up.
    assert (np.abs(sizes - 1 - shares * (samples - clients)) <= 1 + 1e-9).all()


def test_even_parts():
    sizes = [part.size for part in iid_partition(103, 10, stream(0))]
    assert sorted(sizes) == [10] * 7 + [11] * 3


def test_the_power_law_is_one():
    shares = np.sort(power_law_shares(50, 1.2, stream(0)))[::-1]
    np.testing.assert_allclose(shares / shares[0], np.arange(1, 51) ** -1.2)
    assert power_law_shares(50, 1.2, stream(0)).argmax() != power_law_shares(50, 1.2, stream(2)).argmax()


def test_one_stream_is_one_split():
    one, two, other = (iid_partition(50, 5, stream(seed)) for seed in (0, 0, 1))
    assert [part.tolist() for part in one] == [part.tolist() for part in two]
    assert [part.tolist() for part in one] != [part.tolist() for part in other]


def test_train_and_test_have_one_mix_a_client():
    train, test = np.repeat(np.arange(4), 3000), np.repeat(np.arange(4), 1500)
    parts = dirichlet_split(train, test, 20, 1.0, stream(3))
    for labels, found in zip((train, test), parts, strict=True):
        assert sorted(np.concatenate(found).tolist()) == list(range(labels.size))
    mixes = [
        np.array([np.bincount(labels[part], minlength=4) / part.size for part in found])
        for labels, found in zip((train, test), parts, strict=True)
    ]
    distance = np.abs(mixes[0] - mixes[1]).sum(axis=1).mean() / 2
    shuffled = np.abs(mixes[0] - np.roll(mixes[1], 1, axis=0)).sum(axis=1).mean() / 2
    assert distance < 0.1 < 0.3 < shuffled


def test_dealing_draws_as_choice_does():
    """The split of the embedded digits must not move: the draw is NumPy's weighted choice."""
    labels = np.arange(200) % 7
    rng = stream(5)
    stock = [rng.permutation(np.flatnonzero(labels == label)).tolist() for label in range(7)]
    mixes = rng.dirichlet(np.full(7, 0.3), size=8)
    expected = [[] for _ in range(8)]
    for _ in range(25):
        for client in rng.permutation(8).tolist():
            left = np.array([len(items) > 0 for items in stock])
            chances = np.where(left, mixes[client], 0.0)
            chances = chances if chances.sum() > 0 else left.astype(float)
            expected[client].append(stock[int(rng.choice(7, p=chances / chances.sum()))].pop())
    assert [part.tolist() for part in dirichlet_partition(labels, 8, 0.3, stream(5))] == [sorted(p) for p in expected]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: iid_partition(3, 4, stream(0)), "3 samples cannot be split over 4 clients: each needs at least one"),
        (lambda: iid_partition(3, 0, stream(0)), "3 samples cannot be split over 0 clients"),
        (lambda: power_law_shares(0, 1.0, stream(0)), "clients of the power law must be at least 1, but 0 came"),
        (lambda: power_law_shares(3, -1.0, stream(0)), "exponent of the power law must be at least 0"),
        (lambda: power_law_shares(3, math.inf, stream(0)), "exponent of the power law"),
        (lambda: dirichlet_split(np.arange(9), np.arange(2), 3, 1.0, stream(0)), "2 samples cannot be split over 3"),
        (lambda: dirichlet_split(np.arange(9), np.arange(9), 3, 0.0, stream(0)), "alpha of the Dirichlet split"),
    ],
)
def test_bad_splits(call, words):
    with pytest.raises(InputError, match=words):
        call()


def images(count=4, channels=2, height=13, width=10):
    return stream(1).random((count, channels, height, width)).astype(np.float32)


@pytest.mark.parametrize("degrees", [0.0, 13.7, 45.0, -30.0, 90.0, 181.0])
def test_rotation_is_scipys_bilinear_one(degrees):
    """A square image, SciPy's spline of order 1; its mode `grid-constant` blends with the outside as we do."""
    square = images(height=12, width=12)
    expected = ndimage.rotate(
        square, degrees, axes=(2, 3), reshape=False, order=1, mode="grid-constant", cval=0.0, prefilter=False
    )
    np.testing.assert_allclose(rotate(square, degrees), expected, atol=1e-5)


def test_a_quarter_turn_is_exact_and_counter_clockwise():
    square = images(height=11, width=11)
    np.testing.assert_allclose(rotate(square, 90.0), np.rot90(square, axes=(2, 3)), atol=1e-5)


def test_no_turn_and_shapes():
    oblong = images()
    assert rotate(oblong, 0.0) is oblong
    turned = rotate(oblong, 20.0)
    assert turned.shape == oblong.shape
    assert turned.dtype == np.float32
    assert (turned <= oblong.max()).all()
