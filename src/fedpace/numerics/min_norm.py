"""Fujishige-Wolfe minimum-norm point: minimises a submodular set function (Fujishige 1980, Wolfe 1976).

The DelayHet paper uses such a solver for its g(S) (Algorithm 2). For submodular f, the result is exact and the duality
gap certifies it. The paper's g is not submodular (docs/errata.md, A1, A3). Then there is no base polytope, iterations
may cycle, and the gap certifies nothing. The limit on iterations becomes part of the result, and we report it.

Departures: f is scaled to max|f| = 1, so that tolerances have a fixed meaning. The affine minimiser is a rank-revealing
least-squares solve. The result is the best prefix of the sorted minimum-norm point, which is never worse than {x < 0}.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedpace._base.checks import BoolArray, FloatArray, IntArray, at_least, between, frozen, whole
from fedpace._base.errors import InputError

SetFunction = Callable[[BoolArray], float]
"""Takes a read-only mask of the members and returns a finite number."""

Chain = Callable[[IntArray], FloatArray]
"""Takes an order of all n elements and returns f of its n non-empty prefixes."""


@dataclass(frozen=True, eq=False)
class MinNormSolution:
    """The set found, and the quality of the solution."""

    members: IntArray
    """Rows of the set, ascending."""
    value: float
    """f of the set."""
    iterations: int
    """Major steps taken."""
    gap: float
    """Duality gap in units of f. If f is submodular and empty sets are allowed, f(S) is within it of the minimum."""
    converged: bool
    """False if the limit on iterations was reached, which hardly ever happens for a submodular f of this size."""


def min_norm_minimiser(
    f: SetFunction,
    n: int,
    *,
    chain: Chain | None = None,
    max_iter: int = 1000,
    tol: float = 1e-10,
    allow_empty: bool = True,
) -> MinNormSolution:
    """Return a set that minimises f over subsets of n elements.

    Args:
        f: the set function; f(empty) may be any finite number and is subtracted inside.
        n: number of elements.
        chain: returns f of all prefixes of an order at once, if that is cheaper than n calls of f.
        max_iter: limit on major steps.
        tol: stop when <x, x> - <x, q> <= tol max|q|^2.
        allow_empty: False = return the best non-empty prefix of the sorted point, which is the best non-empty set if
            some non-empty set is a minimiser.
    """
    between(n, 0, 2**31, "n")
    whole(n, 0, "n")
    if n < 1:
        raise InputError(f"expected at least one element to choose from, but n = {n} came")
    at_least(max_iter, 1, "max_iter")
    if not callable(f):
        raise InputError(f"expected a function of sets, but a {type(f).__name__} came")
    empty = _finite(f(_mask(np.zeros(0, dtype=np.int64), n)))

    def prefixes(order: IntArray) -> FloatArray:
        if chain is None:
            values = np.array([_finite(f(_mask(order[: size + 1], n))) for size in range(n)])
        else:
            values = np.asarray(chain(order), dtype=np.float64)
            if values.shape != (n,):
                raise InputError(f"chain must return {n} values, one a prefix, but it returned {values.shape}")
            _finite(float(values.sum()))
        return values - empty

    start = prefixes(np.arange(n))
    scale = float(np.abs(start).max()) or 1.0

    def vertex(x: FloatArray) -> FloatArray:
        order = np.argsort(x, kind="stable")
        point = np.empty(n)
        point[order] = np.diff(prefixes(order), prepend=0.0) / scale
        return point

    x, iterations, converged = _min_norm_point(vertex, np.diff(start, prepend=0.0) / scale, max_iter, tol)
    order = np.argsort(x, kind="stable")
    values = prefixes(order)
    size = int(np.argmin(values)) + 1
    if allow_empty and values[size - 1] >= 0:
        size = 0
    normalised = values[size - 1] if size else 0.0
    return MinNormSolution(
        members=frozen(np.sort(order[:size]), np.int64),
        value=float(normalised + empty),
        iterations=iterations,
        gap=float(normalised - scale * np.minimum(x, 0).sum()),
        converged=converged,
    )


def _min_norm_point(
    vertex: Callable[[FloatArray], FloatArray], first: FloatArray, max_iter: int, tol: float
) -> tuple[FloatArray, int, bool]:
    """Return the point of least norm in the convex hull of the vertices (Wolfe's algorithm), steps, and convergence."""
    points, share, x = first[None, :], np.ones(1), first
    largest = float(first @ first)
    for iteration in range(1, max_iter + 1):
        q = vertex(x)
        largest = max(largest, float(q @ q))
        if x @ x - x @ q <= tol * largest or (np.abs(points - q).max(axis=1) <= 1e-14).any():
            return x, iteration, True
        points, share = np.vstack([points, q]), np.append(share, 0.0)
        while True:
            target = _affine_minimiser(points)
            if (target >= -1e-12).all():
                share = np.maximum(target, 0.0)
                break
            falling = target < share
            # Move toward the affine minimiser until the first coefficient reaches 0; its vertex leaves.
            ratio = share[falling] / (share[falling] - target[falling])
            step = float(min(1.0, ratio.min()))
            moved = share + step * (target - share)
            keep = moved > 1e-12
            keep[np.flatnonzero(falling)[np.argmin(ratio)]] = False
            if not keep.any():
                return x, iteration, False
            points, share = points[keep], moved[keep]
        positive = share > 1e-12
        points, share = points[positive], share[positive] / share[positive].sum()
        x = share @ points
    return x, max_iter, False


def _affine_minimiser(points: FloatArray) -> FloatArray:
    """Return coefficients, summing to 1, of the point of least norm in the affine hull."""
    base = points[-1]
    # Least squares on differences: the textbook's Gram system squares the condition number.
    coefficients, *_ = np.linalg.lstsq((points[:-1] - base).T, -base, rcond=1e-13)
    return np.append(coefficients, 1.0 - coefficients.sum())


def _mask(rows: IntArray, n: int) -> BoolArray:
    mask = np.zeros(n, dtype=np.bool_)
    mask[rows] = True
    mask.setflags(write=False)
    return mask


def _finite(value: float) -> float:
    number = float(value)
    if not np.isfinite(number):
        raise InputError(
            f"the set function must return finite numbers, but {number} came: give infeasible sets a large finite value"
        )
    return number
