"""Operators for ||W_i - W_j||_2, W_i = F_i'(F_i A^-1), for many pairs at once, without a d x d matrix per pair.

`VectorPairs` works in d dimensions. It applies every W_i to the vectors of all pairs with client i, as one product,
through its factors or, if r > d/2, as a matrix. `GramPairs` works in r_i + r_j dimensions: with U = [F_i', -F_j'] and V
= [F_i A^-1; F_j A^-1], the squared norm is the largest eigenvalue of (U'U)(VV') (docs/errata.md, B9).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import BoolArray, FloatArray, IntArray
from fedpace.numerics.lanczos import Blocks

Matrix = NDArray[Any]


class VectorPairs:
    """The operators x -> (W_i - W_j)'(W_i - W_j) x in d dimensions.

    `left` and `right` contain, for each client, either F and F A^-1, or W and None.
    """

    def __init__(
        self, left: Sequence[Matrix], right: Sequence[Matrix | None], first: IntArray, second: IntArray
    ) -> None:
        self._left, self._right, self._first, self._second = left, right, first, second
        pairs = len(first)
        # Each pair appears twice, once per client, sorted by client, so that a client's vectors are contiguous.
        client = np.concatenate([first, second])
        order = np.argsort(client, kind="stable")
        place = np.empty(2 * pairs, dtype=np.int64)
        place[order] = np.arange(2 * pairs)
        self._pair, self._plus, self._minus = order % pairs, place[:pairs], place[pairs:]
        clients, starts = np.unique(client[order], return_index=True)
        self._runs = list(zip(clients.tolist(), starts.tolist(), [*starts[1:].tolist(), 2 * pairs], strict=True))
        self._wide: Blocks | None = None
        self._middle: Blocks | None = None
        self._other: Blocks | None = None

    def metric(self, blocks: Blocks) -> Blocks:
        """Return the argument: the inner product is the plain one."""
        return blocks

    def apply(self, blocks: Blocks) -> Blocks:
        """Return (W_i - W_j)'(W_i - W_j) x."""
        if self._wide is None or self._middle is None or self._middle.shape != blocks.shape:
            # Kept between steps: allocating memory of this size costs as much as the arithmetic on it.
            self._wide = np.empty((2 * len(blocks), *blocks.shape[1:]), blocks.dtype)
            self._middle, self._other = np.empty_like(blocks), np.empty_like(blocks)
        self._half(blocks, self._wide, self._middle, adjoint=False)
        result = np.empty_like(blocks)
        self._half(self._middle, self._wide, result, adjoint=True)
        return result

    def restrict(self, keep: BoolArray) -> VectorPairs:
        """Return the operators of the kept pairs."""
        return VectorPairs(self._left, self._right, self._first[keep], self._second[keep])

    def _half(self, blocks: Blocks, wide: Blocks, out: Blocks, *, adjoint: bool) -> None:
        np.take(blocks, self._pair, axis=0, out=wide, mode="clip")
        block, size = blocks.shape[1:]
        flat = wide.reshape(-1, size)
        for client, start, stop in self._runs:
            rows = flat[start * block : stop * block]
            left, right = self._left[client], self._right[client]
            if right is None:
                rows[:] = rows @ (left if adjoint else left.T)
            else:
                outer, inner = (right, left) if adjoint else (left, right)
                np.matmul(rows @ inner.T, outer, out=rows)
        np.take(wide, self._plus, axis=0, out=out, mode="clip")
        np.take(wide, self._minus, axis=0, out=self._other, mode="clip")
        out -= self._other


class GramPairs:
    """The operators c -> (U'U)(VV') c in r_i + r_j dimensions; stores both matrices of every pair in float64."""

    def __init__(self, outer: FloatArray, inner: FloatArray) -> None:
        self._outer, self._inner = outer, inner

    @classmethod
    def build(cls, factors: FloatArray, images: FloatArray, first: IntArray, second: IntArray) -> GramPairs:
        """Return the operators of the pairs; both arguments are (m, r, d), padded with zeros: F, and F A^-1."""
        return cls(_blocks(factors, first, second, -1.0), _blocks(images, first, second, 1.0))

    def metric(self, blocks: Blocks) -> Blocks:
        """Return VV' c."""
        image: Blocks = np.matmul(blocks, self._inner)
        return image

    def apply(self, blocks: Blocks) -> Blocks:
        """Return U'U c."""
        image: Blocks = np.matmul(blocks, self._outer)
        return image

    def restrict(self, keep: BoolArray) -> GramPairs:
        """Return the operators of the kept pairs."""
        return GramPairs(self._outer[keep], self._inner[keep])


def _blocks(rows: FloatArray, first: IntArray, second: IntArray, sign: float) -> FloatArray:
    """Return [[R_i R_i', s R_i R_j'], [s R_j R_i', R_j R_j']] of every pair, with s = `sign`."""
    rank, width = rows.shape[1:]
    left, place_first = np.unique(first, return_inverse=True)
    right, place_second = np.unique(second, return_inverse=True)
    cross = rows[left].reshape(-1, width) @ rows[right].reshape(-1, width).T
    cross = cross.reshape(len(left), rank, len(right), rank)
    own_left = np.matmul(rows[left], rows[left].swapaxes(1, 2))
    own_right = np.matmul(rows[right], rows[right].swapaxes(1, 2))
    result = np.empty((len(first), 2 * rank, 2 * rank))
    result[:, :rank, :rank] = own_left[place_first]
    result[:, rank:, rank:] = own_right[place_second]
    result[:, :rank, rank:] = sign * cross[place_first, :, place_second, :]
    result[:, rank:, :rank] = result[:, :rank, rank:].swapaxes(1, 2)
    return result
