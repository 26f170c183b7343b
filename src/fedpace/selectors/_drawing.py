"""Functions that several schemes share: drawing and weighting clients, and the work that fits into a time."""

from __future__ import annotations

import numpy as np

from fedpace._base.checks import FloatArray, IntArray, shares
from fedpace.core.types import View


def fitting_work(view: View, rows: IntArray, seconds: FloatArray | float) -> FloatArray:
    """(k,) the work with which the clients `rows` are expected to take `seconds`; not positive if nothing fits.

    A task takes what does not grow with the work (transfer, overhead), plus `View.growing` per unit. Infinite for a
    client whose seconds do not grow, if the rest fits.
    """
    growing = view.growing[rows]
    left = np.asarray(seconds - (view.delay[rows] - growing))
    never = np.where(left >= 0, np.inf, -np.inf)
    return np.divide(left, growing, out=never, where=growing > 0)


def delay_quantile(view: View, quantile: float) -> float:
    """Return a quantile of the available clients' delays with work 1: the delay of one of them."""
    return float(np.quantile(view.delay[view.candidates], quantile, method="inverted_cdf"))


def draw_distinct(rows: IntArray, weight: FloatArray, k: int, rng: np.random.Generator) -> IntArray:
    """Return `k` of `rows` drawn one by one without replacement, in proportion to `weight`, in the order drawn.

    The function uses exponential clocks: sorting by Exp(1) / weight gives the same distribution. Rows of weight 0 come
    last, in random order. NumPy's `choice` would raise if fewer than k weights are positive.
    """
    clocks = np.log(rng.standard_exponential(rows.size))
    positive = weight > 0
    keys = clocks - np.log(weight, out=np.zeros(rows.size), where=positive)
    return rows[np.lexsort((keys, ~positive))[:k]]


def largest(rows: IntArray, value: FloatArray, k: int, rng: np.random.Generator) -> IntArray:
    """Return the `k` of `rows` with the largest values, largest first; ties are in random order."""
    return rows[np.lexsort((rng.random(rows.size), -value))[:k]]


def share_weights(view: View, clients: IntArray) -> FloatArray:
    """Return the clients' shares, scaled to sum to 1; equal weights if all shares are 0."""
    own = view.share[clients]
    return shares(own if own.any() else None, clients.size)


def even_weights(clients: IntArray) -> FloatArray:
    """Return 1 / k for each of k clients."""
    return shares(None, clients.size)


def slowest(view: View, clients: IntArray) -> float | None:
    """Return the longest estimated delay among `clients`; None if one of the delays is unknown."""
    seconds = view.delay[clients]
    return None if np.isnan(seconds).any() else float(seconds.max())
