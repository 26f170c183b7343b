"""How late answers come, and how long a cohort is worth waiting for.

A client that is expected after tau seconds answers after tau times a random lateness, which has one distribution for
all. It is estimated from what was seen, those that were given up included: of them it is known only that they would
have taken longer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedpace.core.checks import BoolArray, FloatArray, float_array
from fedpace.core.errors import InputError

LEAST = 10
"""Answers from which the distribution is estimated at the earliest."""
INSTANTS = 200
"""Ends of the round that are looked at."""
MAJORITY = 0.5
"""The weight that must be expected to arrive: fewer do not speak for their cohort."""
ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Lateness:
    """A distribution on finitely many ratios of the time taken to the time expected."""

    ratios: FloatArray
    """Ascending."""
    mass: FloatArray

    @classmethod
    def estimated(cls, ratios: ArrayLike, given_up: ArrayLike) -> Lateness:
        """Return the product-limit estimate (Kaplan and Meier, 1958).

        By Efron's rule: from left to right, the mass of an answer that was given up goes to those that took longer, in
        equal parts. The longest is taken for an answer, whatever it is.
        """
        seen = float_array(ratios, "ratios")
        cut = np.asarray(given_up, dtype=np.bool_)
        if seen.size == 0 or cut.shape != seen.shape:
            raise InputError(
                f"expected some ratios, and for each whether it was given up: {seen.size}, {cut.size} came"
            )
        order = np.lexsort((cut, seen))  # of equal ratios, answers come first
        seen, cut = seen[order], cut[order]
        behind = np.arange(seen.size, 0, -1.0)  # this one and those after it
        passed = np.where(cut, 1.0, 1.0 - 1.0 / behind)
        passed[-1] = 0.0
        above = np.concatenate([[1.0], np.cumprod(passed)])
        return cls(seen, above[:-1] - above[1:])

    def within(self, ratios: FloatArray) -> FloatArray:
        """Return the probabilities of answers that take at most `ratios` times as long as expected."""
        below = np.concatenate([[0.0], np.cumsum(self.mass)])
        return np.asarray(below[np.searchsorted(self.ratios, ratios * (1 + ROUNDING), side="right")])


@dataclass(frozen=True)
class Deadline:
    """When to end a round."""

    seconds: float
    """Infinite: when everybody has answered."""
    expected: float
    """Mean seconds that the round then takes."""
    error: float
    """Relative squared error of its gradient, with those missing that are expected to miss it."""


def best_deadline(
    delays: FloatArray, weights: FloatArray, points: FloatArray, lateness: Lateness, *, scale: float = 1.0
) -> Deadline | None:
    """Return the deadline with the least expected seconds / (1 - error); None where no error is below 1.

    Args:
        delays: (k,) expected seconds of the cohort's clients.
        weights: (k,) that sum to 1; those that arrive share the weight of those that do not.
        points: (k, r) as for `fedpace.numerics.simplex`: the error of a mixture is the squared length of its point.
        lateness: how late answers come, independently of one another.
        scale: what squared lengths are multiplied by.
    """
    ends = np.unique(np.quantile(np.outer(delays, lateness.ratios), np.linspace(0.0, 1.0, INSTANTS)))
    there = lateness.within(ends[:, None] / np.maximum(delays, np.finfo(float).tiny))
    open_ = 1.0 - there.prod(axis=1)
    seconds = ends[0] + np.concatenate([[0.0], np.cumsum(open_[:-1] * np.diff(ends))])
    arrived = there @ weights
    enough: BoolArray = arrived > MAJORITY
    ends, there, seconds, arrived = ends[enough], there[enough], seconds[enough], arrived[enough]
    mixtures = (there * weights) @ points / arrived[:, None]
    spread = (points**2).sum(axis=1) - 2.0 * mixtures @ points.T + (mixtures**2).sum(axis=1)[:, None]
    chance = ((weights / arrived[:, None]) ** 2 * there * (1.0 - there) * spread).sum(axis=1)
    error = scale * ((mixtures**2).sum(axis=1) + chance)
    cost = np.full(ends.size, math.inf)
    np.divide(seconds, 1.0 - error, out=cost, where=(error < 1 - ROUNDING) & (ends > 0))
    best = int(np.argmin(cost))
    if not math.isfinite(cost[best]):
        return None
    last = ends.size - 1
    if cost[best] >= cost[last] * (1 - ROUNDING):
        best = last  # nothing is gained by leaving anybody out
    everybody = best == last
    return Deadline(math.inf if everybody else float(ends[best]), float(seconds[best]), float(error[best]))
