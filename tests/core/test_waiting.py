"""When a round ends."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpace.core.waiting import round_end

SECONDS = np.array([3.0, 1.0, 7.0, 5.0])


@pytest.mark.parametrize(
    ("options", "end"),
    [
        ({}, 7.0),
        ({"deadline": 4.0}, 4.0),
        ({"deadline": math.inf, "enough": 2}, 3.0),
        ({"deadline": 2.0, "enough": 2}, 2.0),
        ({"enough": 9}, 7.0),  # more than there are: everybody
        ({"enough": 2, "answers": np.array([True, False, True, True])}, 5.0),  # a crash is no answer
        ({"enough": 3, "answers": np.array([True, False, False, True])}, 7.0),
    ],
)
def test_the_first_of_three_ends(options, end):
    assert round_end(SECONDS, **options) == end


def test_nobody_is_waited_for_at_once():
    assert round_end(np.zeros(0), 5.0) == 0.0
