"""Stored vectors: the stated error bounds hold for any vector, parts are read as the whole, bytes are as counted."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedpace.numerics.quantised import (
    BLOCK,
    ERROR,
    SMALL,
    WIDTHS,
    bits_of,
    levels,
    put,
    quantised,
    restored,
    row_bytes,
)

widths = st.sampled_from(WIDTHS)
lengths = st.integers(1, 3 * BLOCK + 5)
singles = hnp.arrays(np.float32, lengths, elements=st.floats(-(2.0**120), 2.0**120, width=32))
"""Up to 1e36: the largest singles would overflow as bfloat16s that are rounded up."""


def largest(vector):
    """The largest absolute value of the block that each value is in."""
    filled = np.concatenate([np.abs(vector), np.zeros(-vector.size % BLOCK)])
    return np.repeat(filled.reshape(-1, BLOCK).max(axis=1), BLOCK)[: vector.size].astype(np.float64)


@given(singles, widths)
@settings(max_examples=300)
def test_no_value_is_off_by_more_than_the_bound(vector, bits):
    found = restored(quantised(vector, bits), vector.size).astype(np.float64)
    most = largest(vector)
    scale = most * (1 + 2.0**-7)
    assert (np.abs(found - vector) <= np.where(most < SMALL, SMALL, ERROR * scale / levels(bits))).all()
    assert (found[vector == 0] == 0).all()
    assert (np.sign(found) * np.sign(vector) >= 0).all(), "no value changes its sign"


@given(singles, widths)
def test_equal_vectors_are_equal_bytes_and_opposite_ones_are_opposite(vector, bits):
    row = quantised(vector, bits)
    np.testing.assert_array_equal(row, quantised(vector.copy(), bits))
    np.testing.assert_array_equal(restored(quantised(-vector, bits), vector.size), -restored(row, vector.size))
    assert row.size == row_bytes(vector.size, bits)
    assert bits_of(row, vector.size) == bits


@given(singles, widths, st.integers(0, 3), st.integers(0, 4))
def test_parts_are_read_and_written_as_the_whole_is(vector, bits, first, last):
    row, size = quantised(vector, bits), vector.size
    start, stop = min(first * BLOCK, size // BLOCK * BLOCK), min(last * BLOCK, size)
    if start < stop:
        np.testing.assert_array_equal(restored(row, size, start, stop), restored(row, size)[start:stop])
    again = np.zeros_like(row)
    for begin in range(0, size, BLOCK):
        put(again, vector[begin : begin + BLOCK], size, begin)
    np.testing.assert_array_equal(again, row)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("size", [1e-28, 1e-10, 1.0, 1e10, 1e37])
def test_the_relative_error_is_the_same_at_every_size(bits, size):
    vector = np.random.default_rng(0).normal(size=640) * size / 4
    found = restored(quantised(vector, bits), 640).astype(np.float64)
    error = np.linalg.norm(found - vector) / np.linalg.norm(vector)
    worst = {4: 0.12, 8: 0.007, 16: 3e-5}[bits]
    assert error < worst, "a float16 scale would lose all below 1e-8"


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_a_block_with_a_value_that_is_not_finite_is_read_as_nan(bits, bad):
    vector = np.ones(3 * BLOCK)
    vector[BLOCK + 3] = bad
    found = restored(quantised(vector, bits), vector.size)
    assert np.isnan(found[BLOCK : 2 * BLOCK]).all()
    assert np.allclose(found[:BLOCK], 1, atol=0.01)
    assert np.allclose(found[2 * BLOCK :], 1, atol=0.01)


def test_four_bits_take_an_eighth_and_a_scale_per_block():
    assert row_bytes(640, 4) == 640 // 2 + 2 * 10
    assert row_bytes(640, 8) == 640 + 2 * 10
    assert row_bytes(640, 16) == 2 * 640 + 2 * 10
    with pytest.raises(ValueError, match="no stored vector"):
        bits_of(np.zeros(7, np.uint8), 640)
