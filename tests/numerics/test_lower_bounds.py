"""Lower bounds by hand, and against what must follow from them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpace._base.errors import InputError
from fedpace.numerics.lower_bounds import lower_bound


def test_by_hand():
    found = lower_bound([4.0, 1.0, 100.0], answers=6.0)
    # m = 1: 1 (1 + 6); m = 2: 2 / 1.25 (1 + 3) = 6.4; m = 3: 3 / 1.26 (1 + 2) = 7.14...
    assert found.same_data == pytest.approx(6.4)
    assert found.different_data == pytest.approx(100 + 35 * 2)


def test_exact_updates_need_the_fastest_client_or_the_slowest():
    found = lower_bound([4.0, 1.0, 100.0])
    assert (found.same_data, found.different_data) == (1.0, 100.0)


@given(st.lists(st.floats(0.01, 1e4), min_size=1, max_size=30), st.floats(0, 1e3))
def test_same_data_never_take_longer_and_the_minimum_is_that_of_every_m(seconds, answers):
    found = lower_bound(seconds, answers)
    assert found.same_data <= found.different_data * (1 + 1e-9)
    tau = sorted(seconds)
    every = [m / sum(1 / t for t in tau[:m]) * (1 + answers / m) for m in range(1, len(tau) + 1)]
    assert found.same_data == pytest.approx(min(every))
    assert found.different_data == pytest.approx(tau[-1] + np.mean(tau) * answers / len(tau))


@pytest.mark.parametrize("bad", [([], 0.0), ([1.0], -1.0), ([1.0], float("inf")), ([float("nan")], 0.0)])
def test_refused(bad):
    with pytest.raises(InputError):
        lower_bound(*bad)
