"""The point of a convex hull that is nearest to the origin: which mixture of clients comes closest to the population.

Each client is a point v_i whose inner products are the Gram matrix G of moment matching, so that the squared length of
sum_i a_i v_i is a'Ga. Wolfe's method (P. Wolfe, "Finding the nearest point in a polytope", 1976) minimises it over the
simplex exactly, in finitely many steps: a support is kept on which the affine minimiser is positive, the point that
shortens the sum fastest enters, and those whose weight would turn negative leave. The inverse on the support is updated
by bordering, O(p^2) a step.

A point may have a coordinate of its own, of squared length `own`, that no other point shares: noise that only averaging
over more clients lowers. It adds own sum_i a_i^2 to the squared length, that is, own on the diagonal of G.

`prefix_mixtures` solves it for every prefix of an order of clients: the solution of one prefix starts the next, and a
client that shortens nothing costs one inner product.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import FloatArray, IntArray, at_least, finite, float_array
from fedpace._base.errors import InputError

JITTER = 1e-9
"""Added to squared lengths, in units of their mean: duplicates then share their weight instead of making G singular."""
TOLERANCE = 1e-9
"""A point enters when it shortens the squared sum by more than this share of the mean squared length."""
REFRESH = 64
"""Changes of the support after which its inverse is computed anew: rounding piles up over updates."""
DRIFT = 1e-6
"""How far a column of the inverse times the matrix may be from the identity's before that is done at once."""

MANY = 128
"""Points from which on the first support is all of them less those that are in the way, not one that grows."""

NO_WEIGHT = np.zeros(1)
EVERY = 200
"""Prefixes up to this length are all tried; longer ones in steps of 2 %."""


@dataclass(frozen=True, eq=False)
class Mixture:
    """Weights on some points."""

    clients: IntArray
    """(p,) rows with a positive weight, ascending."""
    weights: FloatArray
    """(p,) positive, summing to 1."""
    error: float
    """Squared length of the weighted sum, own coordinates included."""


def best_mixture(points: ArrayLike, *, own: float = 0.0, max_clients: int | None = None) -> Mixture:
    """Return the mixture of the rows of `points` with the shortest sum, of at most `max_clients` rows."""
    table = _checked(points)
    return next(prefix_mixtures(table, np.arange(len(table)), [len(table)], own=own, max_clients=max_clients))


def prefix_mixtures(
    points: ArrayLike,
    order: ArrayLike,
    lengths: Iterable[int],
    *,
    own: float = 0.0,
    max_clients: int | None = None,
) -> Iterator[Mixture]:
    """Yield the best mixture of order[:length] for one length after the other; stop asking when satisfied.

    Args:
        points: (m, r) one row per client.
        order: rows of `points`, each at most once.
        lengths: prefixes to solve, ascending.
        own: squared length of each point's own coordinate.
        max_clients: most rows with a weight. The problem is then combinatorial and the answer a good one, not the best:
            the client whose leaving costs least makes room for one that gains more. None = no limit, and exact.
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
    """Yield the prefixes of `count` clients that are worth solving: all short ones, longer ones in steps of 2 %."""
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
    """Points with positive weights that are optimal among themselves, and the inverse of their Gram matrix."""

    def __init__(self, points: FloatArray, own: float) -> None:
        scale = float(np.einsum("ij,ij->", points, points)) / len(points) + own
        self._own = own
        self._diagonal = max(own, JITTER * scale, 1e-300)
        self._least_gain = TOLERANCE * scale
        self._points = points
        self._rows: list[int] = []
        self._room = np.empty_like(points)
        """The points of `_rows`, in their order, and room for more: to gather them anew costs more than to use them."""
        self._weights: FloatArray = np.zeros(0)
        self._inverse: FloatArray = np.zeros((0, 0))
        self._sum: FloatArray = np.zeros(points.shape[1])
        self.error = 0.0
        """Squared length of the weighted sum, own coordinates included."""
        self._changes = 0
        self._count = 0

    @property
    def _chosen(self) -> FloatArray:
        return self._room[: len(self._rows)]

    def mixture(self, names: IntArray) -> Mixture:
        """Return the current weights under the caller's rows."""
        clients = names[self._rows]
        ascending = np.argsort(clients)
        return Mixture(clients[ascending], self._weights[ascending], self.error)

    def admit(self, count: int, limit: int) -> None:
        """Make the weights the best for rows 0 to count - 1, given those for the rows that were there before."""
        fresh, self._count = self._count, count
        if not self._rows:
            if not (MANY <= count <= limit and self._begin(count)):
                self._enter(int(np.einsum("ij,ij->i", self._points[:count], self._points[:count]).argmin()))
                self._move_to(np.ones(1))
            fresh = 0
        if not (self.error - self._points[fresh:count] @ self._sum > self._least_gain).any():
            return
        for _ in range(20 * count):
            slopes = self._points[:count] @ self._sum  # of all: who left for an earlier prefix may be wanted again
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
        """Take the affine minimiser over all points, again and again without those whose weight would be negative.

        Where noise makes most points count, that is close to the answer, and costs a few inverses in place of as many
        entries as there are points; what it left out wrongly enters afterwards.
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
        """Let `row` take the place of another if that shortens the sum; return whether it does."""
        before = list(self._rows), self._weights, self._inverse, self._sum, self.error
        size = len(self._rows)
        self._enter(row)
        self._settle()
        while len(self._rows) > size:
            # Without row i the affine minimum is 1 / (sum of the inverse - (its column sum)^2 / its diagonal).
            self._leave(int((self._inverse.sum(axis=1) ** 2 / np.diag(self._inverse)).argmin()))
            self._weights = np.full(len(self._rows), 1.0 / len(self._rows))
            self._settle()
        if self.error < before[4] - self._least_gain:
            return True
        self._rows, self._weights, self._inverse, self._sum, self.error = before
        self._room[:size] = self._points[self._rows]
        return False

    def _settle(self) -> None:
        """Move to the affine minimiser of the support, leaving out whose weight would not stay positive."""
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
        """Compute the inverse anew in time, or at once where a column is off, as when points depend on each other."""
        self._changes += 1
        off = self._inverse @ column
        off[place] -= 1.0
        if self._changes % REFRESH == 0 or not np.abs(off, out=off).max() <= DRIFT:
            chosen = self._chosen
            loaded = chosen @ chosen.T + self._diagonal * np.eye(len(chosen))
            self._inverse = np.asarray(np.linalg.inv(loaded), dtype=np.float64)
