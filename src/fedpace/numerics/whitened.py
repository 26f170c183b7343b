"""Norms of differences of whitened moments W_i = F_i'F_i A^-1, with a choice of method, precision and portions.

Methods are chosen by estimated cost: "svd" for few features, "gram" for small ranks, "vectors" otherwise. "vectors"
runs in float32, unless the tolerance is tighter. If a difference is too small against its two terms for float32, the
pair is computed again in float64. The same holds for pairs in "gram" that lost precision by squaring. Norms that
float64 cannot distinguish from 0 are 0, so that exact duplicates have distance 0.

Neither method forms a d x d matrix per pair. `VectorPairs` works in d dimensions. It applies every W_i to the vectors
of all pairs with client i, as one product, through its factors or, if r > d/2, as a matrix. `GramPairs` works in r_i +
r_j dimensions: with U = [F_i', -F_j'] and V = [F_i A^-1; F_j A^-1], the squared norm is the largest eigenvalue of
(U'U)(VV') (docs/errata.md, B9).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import BoolArray, FloatArray, IntArray
from fedpace._base.rng import stream
from fedpace.numerics.blas import in_parallel, one_blas_thread
from fedpace.numerics.lanczos import Blocks, top_eigenvalues

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


Route = Literal["svd", "gram", "vectors"]

BLOCK = 4
"""Vectors per pair: two near the leading directions of each client."""
GAIN = 0.5
"""A pair stops when a Lanczos step raises its squared norm by less than GAIN tol: the error is then below tol."""
MAX_STEPS = 60
TILE_BYTES = 3_000_000
"""Size of one array of vectors: a few of them should fit into the cache."""


class Whitened:
    """The clients' whitened moments W_i, and the norms of their differences."""

    def __init__(self, factors: Sequence[FloatArray], inverse: FloatArray) -> None:
        self.inverse = inverse
        self.factors = list(factors)
        # Distances do not depend on the unit of features, but float32 needs numbers of moderate size.
        largest = max((float(np.abs(factor).max(initial=0.0)) for factor in factors), default=0.0)
        self._unit = 1.0 / largest if largest > 0 else 1.0
        self._single: dict[int, tuple[NDArray[Any], NDArray[Any] | None]] = {}
        self._leading: dict[int, FloatArray] = {}
        self._size: dict[int, float] = {}
        self.operations = 0.0
        """Floating-point operations in matrix products with the W_i, over all calls."""

    def replace(self, row: int, factor: FloatArray) -> None:
        """Replace the moment of client `row`; the inverse stays (a frozen reference)."""
        self.factors[row] = factor
        for cache in (self._single, self._leading, self._size):
            cache.pop(row, None)

    def keep(self, rows: IntArray) -> None:
        """Drop all clients except `rows`, and keep their order."""
        self.factors = [self.factors[row] for row in rows]
        for cache in (self._single, self._leading, self._size):
            moved = {place: cache[row] for place, row in enumerate(rows.tolist()) if row in cache}
            cache.clear()
            cache.update(moved)  # type: ignore[arg-type]

    def norms(self, first: IntArray, second: IntArray, *, tol: float, route: Route | None = None) -> FloatArray:
        """Return ||W_i - W_j||_2 of the pairs (first, second), with relative error at most `tol`."""
        if not len(first):
            return np.zeros(0)
        if route is None:
            route = cheapest_route(max(len(factor) for factor in self.factors), self.inverse.shape[0])
        with one_blas_thread():
            return self._norms(first, second, tol, route)

    def _norms(self, first: IntArray, second: IntArray, tol: float, route: Route) -> FloatArray:
        if route == "svd":
            return self._by_svd(first, second)
        if route == "gram":
            values = self._by_gram(first, second, tol)
            noise = 4e-8 / np.sqrt(tol)
        else:
            single = tol >= 1e-4
            values = self._by_vectors(first, second, tol, np.float32 if single else np.float64)
            noise = 5e-7 / tol if single else 0.0
        size = self._sizes(first) + self._sizes(second)
        hidden = np.flatnonzero(values < noise * size)
        if hidden.size:
            values[hidden] = self._by_vectors(first[hidden], second[hidden], tol, np.float64)
        values[values < 4e-15 * size] = 0.0
        return values

    def _by_svd(self, first: IntArray, second: IntArray) -> FloatArray:
        clients, left, right = _places(first, second)
        maps = np.stack([self.factors[row].T @ (self.factors[row] @ self.inverse) for row in clients])
        values = np.empty(len(first))

        def solve(part: IntArray) -> None:
            values[part] = np.linalg.norm(maps[left[part]] - maps[right[part]], ord=2, axis=(1, 2))

        in_parallel(solve, tiles(first, second, maps[0].nbytes))
        return values

    def _by_gram(self, first: IntArray, second: IntArray, tol: float) -> FloatArray:
        rank, width = max(len(factor) for factor in self.factors), self.inverse.shape[0]
        values = np.zeros(len(first))
        clients, left, right = _places(first, second)
        factors = np.zeros((len(clients), rank, width))
        for position, client in enumerate(clients):
            factors[position, : len(self.factors[client])] = self.factors[client] * self._unit
        images = (factors.reshape(-1, width) @ (self.inverse / self._unit**2)).reshape(factors.shape)

        def solve(part: IntArray) -> None:
            operators = GramPairs.build(factors, images, left[part], right[part])
            start = np.broadcast_to(_noise(BLOCK, 2 * rank), (len(part), BLOCK, 2 * rank))
            found = top_eigenvalues(operators, start, tol=GAIN * tol, max_steps=MAX_STEPS)
            values[part] = np.sqrt(found.values)

        in_parallel(solve, tiles(first, second, 8 * (2 * rank) ** 2))
        return values

    def _by_vectors(self, first: IntArray, second: IntArray, tol: float, dtype: type) -> FloatArray:
        width = self.inverse.shape[0]
        values = np.zeros(len(first))
        clients, one, other = _places(first, second)
        maps = [self._maps(int(client), dtype) for client in clients]
        leading: NDArray[Any] = np.zeros((len(clients), BLOCK // 2, width), dtype)
        leading[:] = [self._leading_directions(int(client)) for client in clients]
        left, right = [pair[0] for pair in maps], [pair[1] for pair in maps]
        weight = np.array([matrix.size * (1 if right[row] is None else 2) for row, matrix in enumerate(left)])
        done: list[float] = []
        noise = (0.3 / np.sqrt(width) * _noise(BLOCK, width)).astype(dtype)

        def solve(part: IntArray) -> None:
            start = np.concatenate([leading[one[part]], leading[other[part]]], axis=1) + noise
            operators = VectorPairs(left, right, one[part], other[part])
            found = top_eigenvalues(operators, start, tol=GAIN * tol, max_steps=MAX_STEPS)
            values[part] = np.sqrt(found.values)
            entries = weight[one[part]] + weight[other[part]]
            done.append(4.0 * BLOCK * float(found.steps @ entries))

        in_parallel(solve, tiles(first, second, BLOCK * width * np.dtype(dtype).itemsize))
        self.operations += sum(done)
        return values

    def _maps(self, row: int, dtype: type) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Return (F, F A^-1), or (W, None) if W has fewer entries than those two."""
        if dtype is np.float32 and row in self._single:
            return self._single[row]
        factor = self.factors[row] * self._unit
        image = factor @ (self.inverse / self._unit**2)
        pair: tuple[NDArray[Any], NDArray[Any] | None]
        if 2 * len(factor) > factor.shape[1]:
            pair = (factor.T @ image).astype(dtype), None
        else:
            pair = factor.astype(dtype), image.astype(dtype)
        if dtype is np.float32:
            self._single[row] = pair
        return pair

    def _leading_directions(self, row: int) -> FloatArray:
        """Return approximate leading right singular vectors of W_i, and store the size of the terms that form W_i."""
        if row not in self._leading:
            left, right = self._maps(row, np.float32)
            block = _noise(BLOCK + 1, left.shape[1]).T.astype(np.float32)
            for _ in range(4):
                image = left @ block if right is None else left.T @ (right @ block)
                image = left.T @ image if right is None else right.T @ (left @ image)
                block, triangle = np.linalg.qr(image)
            self._leading[row] = block[:, : BLOCK // 2].T.astype(np.float64)
            if right is None:
                self._size[row] = float(np.sqrt(np.abs(triangle[0, 0])))
            else:
                self._size[row] = float(np.linalg.norm(left) * np.linalg.norm(right)) / np.sqrt(max(1, len(left)))
        return self._leading[row]

    def _sizes(self, rows: IntArray) -> FloatArray:
        table = np.zeros(len(self.factors))
        for row in np.unique(rows):
            self._leading_directions(int(row))
            table[row] = self._size[int(row)]
        return table[rows]


def cheapest_route(rank: int, width: int) -> Route:
    """Return the method with the lowest estimated cost per pair; the speeds were fitted on two cores."""
    if width <= 20:
        return "svd"
    vectors = 20 * (16 * min(rank, width / 2) * width + 60 * width)
    gram = 4 * rank**2 * width + 20 * 16 * rank**2 * 6
    return "gram" if 2 * gram < vectors else "vectors"


def tiles(first: IntArray, second: IntArray, pair_bytes: int) -> list[IntArray]:
    """Return portions of pairs with bounded memory and few clients each, so that matrix products have many rows."""
    # Enough portions for all cores, but not so small that matrix products become thin.
    pairs = max(64, min(TILE_BYTES // max(1, pair_bytes), -(-len(first) // 8)))
    side = max(8, int(np.sqrt(pairs)))
    # Sorted by position among the clients present: a few updated clients must not be spread over all portions.
    left, right = (np.unique(rows, return_inverse=True)[1] for rows in (first, second))
    order = np.lexsort((right, left, right // side, left // side))
    return [order[start : start + pairs] for start in range(0, len(order), pairs)]


def _places(first: IntArray, second: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return the clients of the pairs, and the positions of both members of each pair among them."""
    clients, place = np.unique(np.concatenate([first, second]), return_inverse=True)
    return clients, place[: len(first)], place[len(first) :]


def _noise(count: int, size: int) -> FloatArray:
    return stream(0, "heterogeneity", "start", count, size).standard_normal((count, size))
