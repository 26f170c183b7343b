"""The digits: every image once, the split of a seed, and what alpha does."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import ndimage
from sklearn.datasets import load_digits

from fedpace._base.errors import InputError
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


def test_rotated_clients_hold_the_upright_split_turned_by_their_angle():
    config = Digits(clients=6, max_rotation=60.0)
    upright, turned, angles = Digits(clients=6).build(seed=2), config.build(seed=2), config.angles(2)
    assert ((angles >= 0) & (angles <= 60)).all()
    assert len(set(angles.tolist())) == 6
    for before, after, angle in zip(upright.train, turned.train, angles, strict=True):
        np.testing.assert_array_equal(after.targets, before.targets)
        # Bilinear interpolation by another implementation.
        expected = ndimage.rotate(before.inputs.reshape(-1, 8, 8), angle, axes=(1, 2), reshape=False, order=1)
        middle = (slice(None), slice(2, 6), slice(2, 6))  # away from the rim, which the two cut off differently
        np.testing.assert_allclose(after.inputs.reshape(-1, 8, 8)[middle], expected[middle], atol=1e-5)


def test_rotated_test_images_are_those_of_the_upright_set_in_equal_parts():
    upright, turned = (Digits(clients=6, max_rotation=angle).build(seed=2) for angle in (0.0, 1e-9))
    assert sorted(turned.test.targets) == sorted(upright.test.targets)
    brightness = [np.sort(data.test.inputs.sum(axis=1)) for data in (upright, turned)]
    np.testing.assert_allclose(*brightness, rtol=1e-5)
    far = Digits(clients=6, max_rotation=60.0).build(seed=2)
    np.testing.assert_array_equal(far.test.targets, turned.test.targets)
    assert np.abs(far.test.inputs - turned.test.inputs).mean() > 0.01


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clients": 0}, "clients of digits must be at least 1, but 0 came"),
        ({"alpha": 0.0}, "alpha of digits must be above 0"),
        ({"alpha": math.nan}, "alpha of digits"),
        ({"alpha": math.inf}, "alpha of digits must be .*finite"),
        ({"test_fraction": 0.0}, "test_fraction of digits must lie in \\(0, 1\\), but 0.0 came"),
        ({"test_fraction": 1.0}, "test_fraction of digits"),
        ({"max_rotation": -1.0}, "max_rotation of digits must be at least 0, but -1.0 came"),
        ({"max_rotation": math.inf}, "max_rotation of digits must be .*finite"),
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
