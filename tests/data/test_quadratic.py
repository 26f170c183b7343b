"""The paper's Quadratic data, against its own words."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace.data.quadratic import Quadratic

SMALL = Quadratic(clients=3, samples=8, test_samples=5, dimension=4)


def moment(samples):
    inputs = samples.inputs.astype(np.float64)
    return inputs.T @ inputs / len(inputs)


def test_the_defaults_are_the_papers():
    config = Quadratic()
    assert (config.clients, config.samples, config.dimension) == (100, 100, 500)
    assert (config.smallest_eigenvalue, config.largest_eigenvalue, config.noise) == (1.0, 10.0, 0.001)


def test_shapes_and_types():
    data = SMALL.build(seed=0)
    assert data.clients == 3
    assert data.input_shape == (4,)
    assert data.outputs == 1
    assert data.classes is None
    assert data.metric == "loss"
    assert data.label_histograms() is None
    for samples in data.train:
        assert samples.inputs.shape == (8, 4)
        assert samples.targets.shape == (8,)
        assert samples.inputs.dtype == samples.targets.dtype == np.float32
    assert data.test.inputs.shape == (15, 4), "the union of the clients' test sets"
    assert data.loss_scale == pytest.approx(0.5), "1 / sqrt(d)"


def test_covariances_share_their_eigenvectors_but_not_their_eigenvalues():
    data = Quadratic(clients=4, samples=40_000, test_samples=1, dimension=5).build(seed=1)
    first, *others = moments = [moment(samples) for samples in data.train]
    for other in others:
        commutator = first @ other - other @ first
        assert np.linalg.norm(commutator) < 0.05 * np.linalg.norm(first @ other)
        assert np.linalg.norm(first - other) > 0.1 * np.linalg.norm(first)
    off_diagonal = first - np.diag(np.diag(first))
    assert np.abs(off_diagonal).max() > 0.3, "the eigenvectors are not the axes"
    values = np.concatenate([np.linalg.eigvalsh(matrix) for matrix in moments])
    assert values.min() > 0.9
    assert values.max() < 10.5
    assert values.max() - values.min() > 4
    for samples in data.train:
        assert np.abs(samples.inputs.mean(axis=0)).max() < 0.1


def test_the_range_of_eigenvalues_is_an_option():
    data = Quadratic(
        clients=1, samples=20_000, test_samples=1, dimension=3, smallest_eigenvalue=4, largest_eigenvalue=4
    ).build(seed=0)
    np.testing.assert_allclose(moment(data.train[0]), 4 * np.eye(3), atol=0.25)


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_labels_are_linear_in_one_optimum_of_zeros_and_ones(noise):
    config = Quadratic(clients=2, samples=2000, test_samples=500, dimension=6, noise=noise)
    data = config.build(seed=2)
    optimum, *_ = np.linalg.lstsq(data.train[0].inputs.astype(float), data.train[0].targets.astype(float), rcond=None)
    np.testing.assert_allclose(optimum, optimum.round(), atol=0.05 if noise else 1e-5)
    rounded = optimum.round()
    assert set(rounded) == {0.0, 1.0}
    for samples in (*data.train, data.test):
        residual = samples.targets - samples.inputs @ rounded.astype(np.float32)
        assert residual.std() == pytest.approx(noise, rel=0.15, abs=1e-5)


def test_one_seed_is_one_data_set():
    one, two, other = SMALL.build(seed=5), SMALL.build(seed=5), SMALL.build(seed=6)
    np.testing.assert_array_equal(one.train[1].inputs, two.train[1].inputs)
    np.testing.assert_array_equal(one.test.targets, two.test.targets)
    assert not np.array_equal(one.train[1].inputs, other.train[1].inputs)


def test_a_client_does_not_depend_on_how_many_there_are():
    more = Quadratic(clients=7, samples=8, test_samples=5, dimension=4).build(seed=5)
    for few, many in zip(SMALL.build(seed=5).train, more.train, strict=False):
        np.testing.assert_array_equal(few.inputs, many.inputs)
        np.testing.assert_array_equal(few.targets, many.targets)


def test_clients_differ_and_train_is_not_test():
    data = SMALL.build(seed=0)
    rows = np.concatenate([*(samples.inputs for samples in data.train), data.test.inputs])
    assert len(np.unique(rows, axis=0)) == len(rows)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clients": 0}, "clients of quadratic must be at least 1, but 0 came"),
        ({"samples": 0}, "samples of quadratic"),
        ({"test_samples": 0}, "test_samples of quadratic"),
        ({"dimension": 0}, "dimension of quadratic"),
        ({"smallest_eigenvalue": 0.0}, "smallest_eigenvalue of quadratic must be above 0"),
        (
            {"smallest_eigenvalue": 3.0, "largest_eigenvalue": 2.0},
            r"must be at least smallest_eigenvalue = 3\.0, but 2\.0",
        ),
        ({"largest_eigenvalue": math.inf}, "largest_eigenvalue of quadratic must be .*finite"),
        ({"noise": -0.1}, "noise of quadratic must be at least 0"),
        ({"noise": math.inf}, "noise of quadratic must be .*finite"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(InputError, match=words):
        Quadratic(**options)
