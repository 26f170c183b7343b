"""Bad input is refused with a sentence that says what was expected, what came and where."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpace._base import checks
from fedpace._base.errors import FedpaceError, InfeasibleError, InputError, MissingExtraError, OrderError


def test_delays_pass_as_floats():
    np.testing.assert_array_equal(checks.delays([0, 1, 2.5], count=3), [0.0, 1.0, 2.5])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1.0, math.nan], r"the delay of client 1 must be a finite number of seconds.* it is nan \(never observed"),
        ([math.inf, 1.0], r"the delay of client 0 .* it is inf \(check its source"),
        ([1.0, -0.5, math.nan], r"the delay of client 1 .* it is -0\.5"),
        ([], "at least one client, but none came"),
        ([[1.0]], r"delays must have 1 axes, but an array of shape \(1, 1\) came"),
        (["soon"], r"delays must be numbers, but \['soon'\] came"),
        ([None, {}], "delays must be numbers"),
    ],
)
def test_bad_delays(values, words):
    with pytest.raises(InputError, match=words):
        checks.delays(values)


def test_delays_are_counted_and_named():
    with pytest.raises(InputError, match="expected 3 delays, one per client, but 2 came"):
        checks.delays([1.0, 2.0], count=3)
    with pytest.raises(InputError, match="the delay of phone 1 must"):
        checks.delays([1.0, -1.0], name=lambda row: f"phone {row}")


def test_shares_are_scaled_to_one():
    np.testing.assert_allclose(checks.shares([1, 3, 0], 3), [0.25, 0.75, 0.0])
    np.testing.assert_allclose(checks.shares(None, 4), np.full(4, 0.25))


@pytest.mark.parametrize(
    ("values", "count", "words"),
    [
        (None, 0, "expected at least one client, but there are none"),
        ([1.0], 2, "expected 2 shares, one per client, but 1 came"),
        ([1.0, -1.0], 2, "the share of client 1 must be a finite number of at least 0, but it is -1"),
        ([math.nan, 1.0], 2, "the share of client 0 .* it is nan"),
        ([math.inf, 1.0], 2, "the share of client 0 .* it is inf"),
        ([0.0, 0.0], 2, "must not all be 0"),
    ],
)
def test_bad_shares(values, count, words):
    with pytest.raises(InputError, match=words):
        checks.shares(values, count)


def test_float_arrays():
    assert checks.float_array([[1, 2]], "B", ndim=2).dtype == np.float64
    assert np.isnan(checks.float_array([math.nan], "x", finite=False)[0])
    with pytest.raises(InputError, match=r"B must be finite, but entry \(0, 1\) is inf"):
        checks.float_array([[1.0, math.inf]], "B", ndim=2)
    with pytest.raises(InputError, match=r"x must be numbers, but \[\[1, 2\], \[3\]\] came"):
        checks.float_array([[1, 2], [3]], "x")
    with pytest.raises(InputError, match=r"came$") as caught:
        checks.float_array(["long"] * 1000, "x")
    assert len(str(caught.value)) < 120


def test_numbers_with_a_bound():
    checks.at_least(1, 1, "k")
    checks.above(0.1, 0, "lr")
    with pytest.raises(InputError, match="k must be at least 1, but 0 came"):
        checks.at_least(0, 1, "k")
    with pytest.raises(InputError, match="k must be at least 1, but nan came"):
        checks.at_least(math.nan, 1, "k")
    with pytest.raises(InputError, match="lr must be above 0, but 0 came"):
        checks.above(0, 0, "lr")
    with pytest.raises(InputError, match="lr must be above 0, but nan came"):
        checks.above(math.nan, 0, "lr")
    checks.finite(1e300, "noise")
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(InputError, match=f"noise must be a finite number, but {bad} came"):
            checks.finite(bad, "noise")


def test_words_from_a_list():
    checks.one_of("a", ("a", "b"), "mode")
    with pytest.raises(InputError, match="mode must be one of 'a', 'b', but 'c' came"):
        checks.one_of("c", ("a", "b"), "mode")


def test_frozen_copies():
    source = np.array([1.0, 2.0])
    copy = checks.frozen(source)
    source[0] = 5.0
    assert copy[0] == 1.0
    assert not copy.flags.writeable


def test_one_clause_catches_all_errors():
    for kind, also in ((InputError, ValueError), (OrderError, RuntimeError), (InfeasibleError, RuntimeError)):
        assert issubclass(kind, FedpaceError)
        assert issubclass(kind, also)
    missing = MissingExtraError("the digits data", "data", "scikit-learn")
    assert isinstance(missing, FedpaceError)
    assert isinstance(missing, ImportError)
    assert str(missing).startswith("the digits data needs 'scikit-learn', which is not installed: ")
    assert str(missing).endswith("pip install 'fedpace[data]'")
