"""Data that cannot be trained on is refused when it is put together."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace.data.federated import FederatedData, Samples


def samples(count=2):
    return Samples(np.ones((count, 3), np.float32), np.zeros(count, np.int64))


def federated(train, test=None):
    return FederatedData("toy", tuple(train), samples() if test is None else test, classes=2, metric="accuracy")


def test_inputs_and_targets_belong_together():
    with pytest.raises(InputError, match="2 inputs came with 3 targets"):
        Samples(np.ones((2, 3), np.float32), np.zeros(3))
    assert len(samples(4)) == 4


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_are_finite(bad):
    with pytest.raises(InputError, match="the inputs must be finite"):
        Samples(np.array([[1.0, bad]], np.float32), np.zeros(1))
    with pytest.raises(InputError, match="the targets must be finite"):
        Samples(np.ones((1, 2), np.float32), np.array([bad], np.float32))


def test_a_client_without_data():
    with pytest.raises(InputError, match="client 1 of toy holds no samples: use fewer clients or a milder split"):
        federated([samples(), samples(0)])


def test_no_clients():
    with pytest.raises(InputError, match="toy has no clients"):
        federated([])


def test_no_test_data():
    with pytest.raises(InputError, match="toy has no test samples"):
        federated([samples()], samples(0))
