"""Vectors in 4, 8 or 16 bits per value, packed into bytes.

Values are cut into blocks of 64. A block with the largest absolute value m is stored as

    s = m, rounded up to a bfloat16,        q_i = round(L h_i / s),        L = 7, 127 or 32767,

and read back as s q_i / L. So

    |h_i - s q_i / L| <= ERROR s / L,       m <= s <= (1 + 2^-7) m,

with ERROR = 0.51: half a step, and a little for single precision. A bfloat16 has the range of single precision, so that
small vectors do not vanish, as they would in a float16; only blocks with m below 1e-30 are stored as zeros. Rounding is
deterministic: equal vectors are stored as equal bytes. Zeros stay zeros. If a value of a block is not finite, all
values of the block are read back as NaN.

    row = quantised(vector, 4)                  # (row_bytes(len(vector), 4),) bytes
    part = restored(row, len(vector), 64, 128)  # values 64 to 127 in single precision
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

BLOCK = 64
"""Values per block."""
ERROR = 0.51
"""Largest error of a value, in units of s / L."""

Bits = Literal[4, 8, 16]
Bytes = NDArray[np.uint8]
Single = NDArray[np.float32]

WIDTHS: tuple[Bits, ...] = (4, 8, 16)
_LEVELS: dict[int, int] = {4: 7, 8: 127, 16: 32767}
SMALL = 1e-30
"""Blocks of smaller values are stored as zeros: L / s would leave the range of single precision."""
_SCALE = 2
"""Bytes of a block's scale."""
_PAIRS = np.array([[low - 8, high - 8] for high in range(16) for low in range(16)], dtype=np.float32).reshape(-1)
_PAIR = _PAIRS.view(np.float64)
"""The two values of every byte of a 4-bit row, both in one number of 8 bytes: reading is then one look-up per byte."""


def levels(bits: int) -> int:
    """Return L, the largest stored integer."""
    return _LEVELS[bits]


def row_bytes(length: int, bits: int) -> int:
    """Return the number of bytes of a stored vector."""
    return -(-length // BLOCK) * (_SCALE + BLOCK * bits // 8)


def bits_of(row: Bytes, length: int) -> int:
    """Return the bits per value of a stored vector with `length` values."""
    for bits in WIDTHS:
        if row.size == row_bytes(length, bits):
            return bits
    raise ValueError(f"{row.size} bytes are no stored vector of {length} values")


def quantised(values: NDArray[np.floating], bits: Bits) -> Bytes:
    """Return the stored form of a vector."""
    row = np.empty(row_bytes(values.size, bits), dtype=np.uint8)
    put(row, values, values.size)
    return row


def put(row: Bytes, values: NDArray[np.floating], length: int, start: int = 0) -> Single:
    """Write `values` into `row` from entry `start` on; return that part as it will be read back.

    Args:
        row: the stored vector.
        values: the values.
        length: number of values of the whole vector.
        start: position of the first value.

    `start` must be a multiple of `BLOCK`, and so must the number of values, unless they reach the end of the vector.
    """
    count = -(-length // BLOCK)
    bits = bits_of(row, length)
    first, used = start // BLOCK, -(-values.size // BLOCK)
    assert start % BLOCK == 0
    assert values.size % BLOCK == 0 or start + values.size == length
    blocks = _blocks(values)
    most = _largest(blocks)
    scales = _rounded_up(np.where(most < SMALL, np.float32(0), most))
    row[: _SCALE * count].view(np.uint16)[first : first + used] = scales
    largest = _as_single(scales)
    finite = np.isfinite(largest)
    factors = np.divide(np.float32(_LEVELS[bits]), largest, out=np.zeros_like(largest), where=finite & (largest > 0))
    with np.errstate(invalid="ignore"):  # infinity times 0
        integers = blocks * factors[:, None]
    if not finite.all():
        integers[~finite] = 0.0
    np.rint(integers, out=integers)
    codes = row[_SCALE * count :].reshape(count, -1)[first : first + used]
    if bits == 16:
        codes[:] = integers.astype(np.int16).view(np.uint8)
    elif bits == 8:
        codes[:] = integers.astype(np.int8).view(np.uint8)
    else:
        pairs = (integers + np.float32(8)).astype(np.uint8).view(np.uint16)
        codes[:] = (pairs | (pairs >> 4)).astype(np.uint8)
    return _scaled(integers, largest, bits)[: values.size]


def restored(row: Bytes, length: int, start: int = 0, stop: int | None = None) -> Single:
    """Return the values from `start` to `stop` of a stored vector; `start` is a multiple of `BLOCK`."""
    stop = length if stop is None else min(stop, length)
    count, bits = -(-length // BLOCK), bits_of(row, length)
    blocks = slice(start // BLOCK, -(-stop // BLOCK))
    scales = _as_single(row[: _SCALE * count].view(np.uint16)[blocks])
    codes = row[_SCALE * count :].reshape(count, -1)[blocks]
    if bits == 16:
        values = codes.view(np.int16).astype(np.float32)
    elif bits == 8:
        values = codes.view(np.int8).astype(np.float32)
    else:
        values = _PAIR.take(codes).view(np.float32)
    return _scaled(values, scales, bits)[: stop - start]


def _scaled(integers: Single, scales: Single, bits: int) -> Single:
    """Return the values of stored integers, which are overwritten."""
    factors = scales / np.float32(_LEVELS[bits])
    if not np.isfinite(factors).all():
        factors[~np.isfinite(factors)] = np.nan
    integers *= factors[:, None]
    return integers.reshape(-1)


def _blocks(values: NDArray[np.floating]) -> Single:
    """Return the values in rows of one block, the last filled up with zeros."""
    with np.errstate(over="ignore"):
        single = np.asarray(values, dtype=np.float32)
    if values.size % BLOCK:
        single = np.concatenate([single, np.zeros(-values.size % BLOCK, dtype=np.float32)])
    return single.reshape(-1, BLOCK)


def _largest(blocks: Single) -> Single:
    """Return the largest absolute value of each block; NaN if the block has one."""
    found = np.abs(blocks).reshape(-1)
    for _ in range(BLOCK.bit_length() - 1):  # pairwise: a third of the time of `max(axis=1)`
        found = np.maximum(found[::2], found[1::2])
    return found


def _rounded_up(values: Single) -> NDArray[np.uint16]:
    """Return values of at least 0 as the next larger bfloat16, the upper half of a single; NaN as infinity."""
    bits = np.where(np.isnan(values), np.float32(np.inf), values).astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0xFFFF)) >> np.uint32(16)).astype(np.uint16)


def _as_single(scales: NDArray[np.uint16]) -> Single:
    return (scales.astype(np.uint32) << np.uint32(16)).view(np.float32)
