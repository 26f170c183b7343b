"""Factors reproduce the second moment, and nothing of the rows but that."""

from __future__ import annotations

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.moments import factor_from_features, moment_from_features


@pytest.fixture
def batch():
    return stream(0, "batch").normal(loc=1.0, size=(30, 8))


@pytest.mark.parametrize("rows", [1, 3, 8, 30])
def test_the_factor_has_the_uncentred_second_moment(batch, rows):
    factor = factor_from_features(batch[:rows])
    np.testing.assert_allclose(factor.T @ factor, batch[:rows].T @ batch[:rows] / rows, atol=1e-12)
    assert factor.shape == (min(rows, 8), 8)


def test_it_depends_on_the_rows_only_through_their_moment(batch):
    shuffled = batch[::-1]
    np.testing.assert_allclose(factor_from_features(shuffled), factor_from_features(batch), atol=1e-10)
    factor = factor_from_features(batch[:3]) * np.sqrt(3)
    distance = np.abs(np.abs(factor[:, None]) - np.abs(batch[None, :3])).max(axis=2)
    assert distance.min() > 0.1


def test_bias_and_labels_are_appended(batch):
    target = batch @ np.arange(8.0)
    augmented = np.column_stack([batch, np.ones(30), target])
    factor = factor_from_features(batch, bias=True, labels=target)
    np.testing.assert_allclose(factor.T @ factor, augmented.T @ augmented / 30, rtol=1e-9, atol=1e-9)


def test_class_numbers_become_one_hot(batch):
    numbers = np.arange(30) % 3
    one_hot = np.eye(4)[numbers]
    by_number = factor_from_features(batch, labels=numbers, classes=4)
    np.testing.assert_allclose(by_number, factor_from_features(batch, labels=one_hot), atol=1e-10)
    np.testing.assert_allclose((by_number.T @ by_number)[8:, 8:], np.diag([1, 1, 1, 0]) / 3, atol=1e-12)


def test_compression_keeps_the_leading_directions_and_reports_the_rest(batch):
    whole, short = moment_from_features(batch), moment_from_features(batch, max_rank=3)
    np.testing.assert_allclose(short.factor, whole.factor[:3])
    values = np.linalg.eigvalsh(batch.T @ batch / 30)[::-1]
    np.testing.assert_allclose(short.discarded, values[3:].sum() / values.sum())
    np.testing.assert_allclose([short.energy, whole.energy], values.sum())
    assert whole.discarded == 0
    assert whole.samples == 30


def test_an_all_zero_batch_has_rank_zero():
    moment = moment_from_features(np.zeros((4, 3)))
    assert moment.factor.shape == (0, 3)
    assert moment.discarded == 0


@pytest.mark.parametrize(
    ("features", "options", "words"),
    [
        (np.ones(3), {}, "2 axes"),
        (np.ones((0, 3)), {}, "at least one row"),
        (np.full((2, 3), np.inf), {}, "finite"),
        (np.ones((2, 3)), {"max_rank": 0}, "max_rank"),
        (np.ones((2, 3)), {"labels": np.ones(3)}, "one label a row"),
        (np.ones((2, 3)), {"labels": np.array([0, 2]), "classes": 2}, "0 to 1"),
        (np.ones((2, 3)), {"labels": np.ones(2), "classes": 2}, "whole numbers"),
        (np.ones((2, 3)), {"labels": [np.nan, 1]}, "labels must be finite"),
        (np.ones((2, 3)), {"classes": 2}, "without labels"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(features, options, words):
    with pytest.raises(InputError, match=words):
        factor_from_features(features, **options)


@pytest.mark.parametrize("rows", [5, 40])
def test_small_features_keep_their_digits(rows):
    scale = np.logspace(-6, 0, 8)
    features = stream(1, "scales").normal(size=(rows, 8)) * scale
    factor = factor_from_features(features)
    moment = features.T @ features / rows
    np.testing.assert_allclose((factor.T @ factor) / np.outer(scale, scale), moment / np.outer(scale, scale), atol=1e-8)


def test_repeated_rows_do_not_raise_the_rank(batch):
    assert factor_from_features(np.repeat(batch[:3], 2, axis=0)).shape == (3, 8)
    assert factor_from_features(np.repeat(batch[:3], 9, axis=0)).shape == (3, 8)
