"""The digits: every image once, the split of a seed, and what alpha does."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedpace.core.errors import InputError
from fedpace.data.digits import Digits


def rows(samples):
    """Images with their label, as sortable rows."""
    return [(*image.tolist(), int(label)) for image, label in zip(samples.inputs, samples.targets, strict=True)]


def test_every_image_is_used_once():
    data = Digits(clients=7).build(seed=0)
    source = load_digits()
    expected = sorted(
        (*(image / 16).astype(np.float32).tolist(), int(label))
        for image, label in zip(source.data, source.target, strict=True)
    )
    used = [row for part in (*data.train, data.test) for row in rows(part)]
    assert sorted(used) == expected, "training and test data are disjoint, and nothing is lost"


def test_shapes():
    data = Digits(clients=7, test_fraction=0.25).build(seed=0)
    assert data.clients == 7
    assert data.classes == data.outputs == 10
    assert data.input_shape == (64,)
    assert data.metric == "accuracy"
    assert data.loss_scale == 1.0
    assert len(data.test) == round(0.25 * 1797)
    sizes = {len(samples) for samples in data.train}
    assert max(sizes) - min(sizes) <= 1
    inputs = data.train[0].inputs
    assert inputs.dtype == np.float32
    assert inputs.min() >= 0
    assert inputs.max() <= 1
    histograms = data.label_histograms()
    assert histograms.shape == (7, 10)
    assert histograms.sum() == 1797 - len(data.test)
    np.testing.assert_array_equal(histograms[3], np.bincount(data.train[3].targets, minlength=10))


def test_one_seed_is_one_split():
    one, two, other = (Digits(clients=5).build(seed=seed) for seed in (3, 3, 4))
    assert rows(one.train[2]) == rows(two.train[2])
    assert rows(one.test) == rows(two.test)
    assert rows(one.test) != rows(other.test)


def test_small_alpha_means_few_classes_a_client():
    def classes_a_client(alpha):
        shares = Digits(clients=30, alpha=alpha).build(seed=1).label_histograms()
        shares = shares / shares.sum(axis=1, keepdims=True)
        return float(np.mean(1 / (shares**2).sum(axis=1)))

    few, some, many = classes_a_client(0.05), classes_a_client(1.0), classes_a_client(100.0)
    assert few < 3 < some < 8 < many


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clients": 0}, "clients of digits must be at least 1, but 0 came"),
        ({"alpha": 0.0}, "alpha of digits must be above 0"),
        ({"alpha": math.nan}, "alpha of digits"),
        ({"alpha": math.inf}, "alpha of digits must be .*finite"),
        ({"test_fraction": 0.0}, "test_fraction of digits must lie between 0 and 1, but 0.0 came"),
        ({"test_fraction": 1.0}, "test_fraction of digits"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(InputError, match=words):
        Digits(**options)


def test_more_clients_than_images():
    with pytest.raises(InputError, match="1438 samples cannot be split over 2000 clients: each needs at least one"):
        Digits(clients=2000).build(seed=0)


def test_a_test_set_of_nothing():
    with pytest.raises(InputError, match="test"):
        Digits(clients=2, test_fraction=1e-6).build(seed=0)
