"""The Dirichlet split: every sample once, even sizes, any alpha."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.data._public_sets import dirichlet_partition


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=40),
    st.integers(1, 12),
    st.sampled_from([1e-300, 1e-12, 0.01, 1.0, 1e6, 1e300]),
    st.integers(0, 100),
)
def test_every_sample_is_used_once_and_sizes_are_even(labels, clients, alpha, seed):
    labels = np.array(labels, dtype=np.int64)
    clients = min(clients, labels.size)
    parts = dirichlet_partition(labels, clients, alpha, stream(seed))
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(labels.size))
    sizes = [part.size for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert all((np.diff(part) > 0).all() for part in parts)


def test_a_class_that_is_missing():
    parts = dirichlet_partition(np.array([0, 0, 7, 7]), 2, 0.1, stream(0))
    assert sorted(np.concatenate(parts).tolist()) == [0, 1, 2, 3]


def test_mixes_follow_the_dirichlet():
    """With plenty of samples, a client's mix is a draw from Dirichlet(alpha): mean 1/c, variance known."""
    labels = np.repeat(np.arange(4), 6000)
    alpha = 1.0
    parts = dirichlet_partition(labels, 300, alpha, stream(1))
    mixes = np.array([np.bincount(labels[part], minlength=4) / part.size for part in parts])
    np.testing.assert_allclose(mixes.mean(axis=0), 0.25, atol=0.03)
    expected = (1 / 4) * (3 / 4) / (4 * alpha + 1)
    assert mixes.var(axis=0).mean() == pytest.approx(expected, rel=0.25)


def test_one_stream_is_one_split():
    labels = np.arange(60) % 5
    one, two, other = (dirichlet_partition(labels, 4, 0.5, stream(seed)) for seed in (0, 0, 1))
    assert [part.tolist() for part in one] == [part.tolist() for part in two]
    assert [part.tolist() for part in one] != [part.tolist() for part in other]


@pytest.mark.parametrize(
    ("labels", "clients", "alpha", "words"),
    [
        ([0, 1], 3, 1.0, "2 samples cannot be split over 3 clients: each needs at least one"),
        ([0, 1], 0, 1.0, "2 samples cannot be split over 0 clients"),
        ([], 1, 1.0, "0 samples cannot be split over 1 clients"),
        ([0, 1], 1, 0.0, "alpha of the Dirichlet split must be above 0, but 0.0 came"),
        ([0, 1], 1, math.nan, "alpha of the Dirichlet split"),
        ([0, 1], 1, math.inf, "alpha of the Dirichlet split must be .*finite"),
        ([0, -1], 1, 1.0, "labels must be classes, 0 and above, but -1 came"),
    ],
)
def test_bad_input(labels, clients, alpha, words):
    with pytest.raises(InputError, match=words):
        dirichlet_partition(np.array(labels, dtype=np.int64), clients, alpha, stream(0))
