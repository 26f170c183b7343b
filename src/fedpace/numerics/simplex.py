"""Finds the mixture of clients that is closest to the population: the point of a convex hull nearest to the origin.

Each client is a point v_i. Inner products of points form the Gram matrix G of moment matching, so that the squared
length of sum_i a_i v_i is a'Ga. Wolfe's method (P. Wolfe, "Finding the nearest point in a polytope", 1976) minimises it
over the simplex exactly, in finitely many steps. It keeps a support on which the affine minimiser is positive. The
point that shortens the sum fastest enters, and points whose weight would become negative leave. The inverse on the
support is updated by bordering, at O(p^2) per step.

Each point may have a coordinate of its own with squared length `own`, shared by no other point. It models noise that
only averaging over more clients reduces. It adds own sum_i a_i^2 to the squared length, that is, own on the diagonal of
G.

`prefix_mixtures` solves the problem for every prefix of an order of clients. The solution of one prefix starts the
next, and a client that shortens nothing costs one inner product.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import FloatArray, IntArray, at_least, finite, float_array
from fedpace._base.errors import InputError

JITTER = 1e-9
"""Added to squared lengths, in units of their mean, so that duplicates share their weight and G is not singular."""
TOLERANCE = 1e-9
"""A point enters if it shortens the squared sum by more than this part of the mean squared length."""
REFRESH = 64
"""Number of changes of the support after which its inverse is recomputed, because rounding errors accumulate."""
DRIFT = 1e-6
"""Largest error of a column of inverse times matrix, relative to the identity, before the inverse is recomputed at
once."""

MANY = 128
"""From this many points on, the first support starts with all points and shrinks, instead of growing from one."""

NO_WEIGHT = np.zeros(1)
EVERY = 200
"""Prefixes up to this length are all tried; longer ones grow in steps of 2 %."""


@dataclass(frozen=True, eq=False)
class Mixture:
    """Weights on a subset of points."""

    clients: IntArray
    """(p,) rows with a positive weight, ascending."""
    weights: FloatArray
    """(p,) positive, summing to 1."""
    error: float
    """Squared length of the weighted sum, including own coordinates."""


def prefix_mixtures(
    points: ArrayLike,
    order: ArrayLike,
    lengths: Iterable[int],
    *,
    own: float = 0.0,
    max_clients: int | None = None,
) -> Iterator[Mixture]:
    """Yield the best mixture of order[:length] for each length; the caller may stop early.

    Args:
        points: (m, r) one row per client.
        order: rows of `points`, each at most once.
        lengths: prefixes to solve, ascending.
        own: squared length of each point's own coordinate.
        max_clients: largest number of rows with a weight. The problem is then combinatorial, and the result is good but
            not always the best: a client leaves at the smallest cost if another one gains more. None = no limit, and
            exact.
    """
    table = _checked(points)
    rows = np.asarray(order, dtype=np.int64)
    at_least(own, 0, "own")
    finite(own, "own")
    if max_clients is not None:
        at_least(max_clients, 1, "max_clients")
    support = _Support(table[rows], own)
    for length in lengths:
        support.admit(length, len(rows) if max_clients is None else max_clients)
        yield support.mixture(rows)


def prefix_lengths(count: int) -> Iterator[int]:
    """Yield the prefix lengths to solve for `count` clients: all short ones, longer ones in steps of 2 %."""
    length = 1
    while length < count:
        yield length
        length += max(1, length // 50) if length >= EVERY else 1
    yield count


def _checked(points: ArrayLike) -> FloatArray:
    table = float_array(points, "points", ndim=2)
    if not len(table):
        raise InputError("a mixture needs at least one point, but none came")
    return table


class _Support:
    """Points with positive, mutually optimal weights, and the inverse of their Gram matrix."""

    def __init__(self, points: FloatArray, own: float) -> None:
        scale = float(np.einsum("ij,ij->", points, points)) / len(points) + own
        self._own = own
        self._diagonal = max(own, JITTER * scale, 1e-300)
        self._least_gain = TOLERANCE * scale
        self._points = points
        self._rows: list[int] = []
        self._room = np.empty_like(points)
        """The points of `_rows`, in order, with space for more: gathering them again costs more than using them."""
        self._weights: FloatArray = np.zeros(0)
        self._inverse: FloatArray = np.zeros((0, 0))
        self._sum: FloatArray = np.zeros(points.shape[1])
        self.error = 0.0
        """Squared length of the weighted sum, including own coordinates."""
        self._changes = 0
        self._count = 0

    @property
    def _chosen(self) -> FloatArray:
        return self._room[: len(self._rows)]

    def mixture(self, names: IntArray) -> Mixture:
        """Return the current weights, with the caller's row numbers."""
        clients = names[self._rows]
        ascending = np.argsort(clients)
        return Mixture(clients[ascending], self._weights[ascending], self.error)

    def admit(self, count: int, limit: int) -> None:
        """Make the weights optimal for rows 0 to count - 1, starting from those of the previous rows."""
        fresh, self._count = self._count, count
        if not self._rows:
            if not (MANY <= count <= limit and self._begin(count)):
                self._enter(int(np.einsum("ij,ij->i", self._points[:count], self._points[:count]).argmin()))
                self._move_to(np.ones(1))
            fresh = 0
        if not (self.error - self._points[fresh:count] @ self._sum > self._least_gain).any():
            return
        for _ in range(20 * count):
            slopes = self._points[:count] @ self._sum  # all rows: one that left earlier may return
            slopes[self._rows] = np.inf
            entering = int(slopes.argmin())
            if self.error - slopes[entering] <= self._least_gain:
                return
            if len(self._rows) < limit:
                self._enter(entering)
                self._settle()
            elif not self._exchange(entering):
                return

    def _begin(self, count: int) -> bool:
        """Start from the affine minimiser over all points, and repeatedly drop points with negative weight.

        If noise makes most points count, this is close to the solution and costs a few inverses instead of one entry
        per point. Points that were dropped wrongly enter afterwards. Returns whether it succeeded.
        """
        rows = np.arange(count)
        gram = self._points[:count] @ self._points[:count].T + self._diagonal * np.eye(count)
        for _ in range(REFRESH):
            inverse = np.asarray(np.linalg.inv(gram[np.ix_(rows, rows)]), dtype=np.float64)
            goal = inverse.sum(axis=1)
            total = float(goal.sum())
            if not (np.isfinite(goal).all() and total > 0):
                return False
            if (goal > 0).all():
                self._rows, self._inverse = rows.tolist(), inverse
                self._room[: len(rows)] = self._points[rows]
                self._move_to(goal / total)
                return True
            rows = rows[goal > 0]
        return False

    def _exchange(self, row: int) -> bool:
        """Replace another row by `row` if that shortens the sum; return whether it does."""
        before = list(self._rows), self._weights, self._inverse, self._sum, self.error
        size = len(self._rows)
        self._enter(row)
        self._settle()
        while len(self._rows) > size:
            # Without row i, the affine minimum is 1 / (sum of the inverse - (its column sum)^2 / its diagonal).
            self._leave(int((self._inverse.sum(axis=1) ** 2 / np.diag(self._inverse)).argmin()))
            self._weights = np.full(len(self._rows), 1.0 / len(self._rows))
            self._settle()
        if self.error < before[4] - self._least_gain:
            return True
        self._rows, self._weights, self._inverse, self._sum, self.error = before
        self._room[:size] = self._points[self._rows]
        return False

    def _settle(self) -> None:
        """Move to the affine minimiser of the support, dropping points whose weight would not stay positive."""
        while True:
            goal = np.add.reduce(self._inverse, axis=1)
            goal /= np.add.reduce(goal)
            negative = goal <= 0
            if not negative.any():
                self._move_to(goal)
                return
            falling = np.flatnonzero(negative)
            before = self._weights
            steps = before[falling] / (before[falling] - goal[falling])
            first = int(steps.argmin())
            self._weights = np.maximum(before + steps[first] * (goal - before), 0.0)
            self._leave(int(falling[first]))

    def _move_to(self, weights: FloatArray) -> None:
        self._weights = weights
        self._sum = weights @ self._chosen
        self.error = float(self._sum @ self._sum) + self._own * float(weights @ weights)

    def _enter(self, row: int) -> None:
        inverse, size = self._inverse, len(self._rows)
        point = self._points[row]
        column = self._chosen @ point
        square = float(point @ point) + self._diagonal
        image = inverse @ column
        pivot = max(square - float(column @ image), self._diagonal)
        self._inverse = grown = np.empty((size + 1, size + 1))
        body = grown[:size, :size]
        np.multiply(image[:, None], image, out=body)
        body /= pivot
        body += inverse
        grown[:size, size] = grown[size, :size] = -image / pivot
        grown[size, size] = 1.0 / pivot
        self._rows.append(row)
        self._room[size] = point
        self._weights = np.concatenate((self._weights, NO_WEIGHT))
        self._check(np.concatenate((column, [square])), size)

    def _leave(self, place: int) -> None:
        stay = np.arange(len(self._rows)) != place
        column = self._inverse[stay, place]
        self._inverse = self._inverse[np.ix_(stay, stay)] - np.outer(column, column) / self._inverse[place, place]
        del self._rows[place]
        self._room[place : len(self._rows)] = self._room[place + 1 : len(self._rows) + 1].copy()
        self._weights = self._weights[stay]
        column = self._chosen @ self._chosen[-1]
        column[-1] += self._diagonal
        self._check(column, len(self._rows) - 1)

    def _check(self, column: FloatArray, place: int) -> None:
        """Recompute the inverse regularly, or at once if a column is inaccurate, as with linearly dependent points."""
        self._changes += 1
        off = self._inverse @ column
        off[place] -= 1.0
        if self._changes % REFRESH == 0 or not np.abs(off, out=off).max() <= DRIFT:
            chosen = self._chosen
            loaded = chosen @ chosen.T + self._diagonal * np.eye(len(chosen))
            self._inverse = np.asarray(np.linalg.inv(loaded), dtype=np.float64)
