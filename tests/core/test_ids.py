"""Client ids survive JSON, and what does not is refused by name."""

from __future__ import annotations

import json
from collections import namedtuple
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace._base.codec import decode_id, encode_id
from fedpace._base.errors import InputError
from fedpace._base.files import json_bytes

SCALARS = st.one_of(
    st.text(max_size=8), st.integers(), st.binary(max_size=8), st.floats(allow_nan=False), st.none(), st.booleans()
)
IDS = st.recursive(SCALARS, lambda parts: st.lists(parts, max_size=4).map(tuple), max_leaves=8)


def same(one, two):
    """Equal and of one type all the way down: 1, 1.0 and True are equal to Python, but not one id to a host."""
    if isinstance(one, tuple):
        return isinstance(two, tuple) and len(one) == len(two) and all(map(same, one, two))
    return type(one) is type(two) and repr(one) == repr(two)


@settings(max_examples=200, deadline=None)
@given(IDS)
def test_round_trip(client):
    assert same(decode_id(json.loads(json_bytes(encode_id(client)))), client)


@pytest.mark.parametrize("client", [0.1 + 0.2, -0.0, float("inf"), 2**100, "", (), ((),), "é\n\0", (1, "1", b"1", 1.0)])
def test_round_trip_of_odd_ids(client):
    assert same(decode_id(json.loads(json_bytes(encode_id(client)))), client)


def test_nan_comes_back_as_nan():
    back = decode_id(encode_id(float("nan")))
    assert back != back


def test_numpy_integers_become_plain():
    assert encode_id(np.int64(7)) == 7
    assert type(decode_id(encode_id(np.int64(7)))) is int


def test_a_named_tuple_is_still_equal():
    phone = namedtuple("phone", "site number")(1, "b")
    assert decode_id(encode_id(phone)) == phone


@pytest.mark.parametrize(
    "client", [frozenset({1}), Fraction(1, 3), 1j, np.datetime64("2020-01-01"), "\ud800"], ids=repr
)
def test_other_ids_are_refused_by_name(client):
    with pytest.raises(InputError, match="cannot be saved") as caught:
        encode_id((1, client))
    assert repr(client) in str(caught.value)
    assert "plain id" in str(caught.value)


@pytest.mark.parametrize(
    "saved",
    [
        True,
        None,
        1.5,
        [],
        {},
        {"tuple": 1},
        {"set": []},
        {"bool": 1},
        {"bytes": "zz"},
        {"float": "many"},
        {"a": 1, "b": 2},
    ],
)
def test_damaged_ids(saved):
    with pytest.raises(InputError, match="is not a saved client id"):
        decode_id(saved)
