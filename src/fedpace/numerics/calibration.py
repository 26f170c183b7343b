"""Calibration: relates the distance between clients' updates to the distance between their moments.

Moments show how clients' data differ, up to a factor, but not the noise in an update from minibatches, few samples or
local drift. Suppose u_i = g + |g| (sqrt(s) p_i + e_i), with p_i the point of client i (`fedpace.numerics.simplex`) and
e_i independent errors of squared length nu. Then for every pair

    |u_i - u_j|^2 / |g|^2  =  s |p_i - p_j|^2 + 2 nu      in expectation:

a line with slope s and intercept 2 nu. Past rounds are kept as decaying sums that determine the line.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace._base.errors import InputError

MOST = 256
"""Largest number of clients whose pairs are used; more would cost more than they add."""
PRIOR = 0.01
"""Weight of the prior that slope and intercept explain equal parts; it decides if all pairs have similar distances."""
CLOSE = 0.5
"""If the measured pairs' mean squared distance is below this part of all clients' mean, the latter sets the prior's
unit. For honest clients that answered, the ratio was at least 0.83, because speed does not depend on the data."""
SMALLEST = 1e-150
"""Smaller squared distances are not squared again: they would underflow."""
LARGEST = 1e150
"""Larger squared distances are not squared again: they would overflow, as with moments of 1e-194 beside 1e-66."""


@dataclass(frozen=True)
class PairSums:
    """Means over pairs of x = |p_i - p_j|^2 and y = |u_i - u_j|^2 / |u|^2, and of xx and xy."""

    x: float
    y: float
    xx: float
    xy: float

    @classmethod
    def of(cls, updates: FloatArray, points: FloatArray, square: float) -> PairSums | None:
        """Return the means over pairs of clients; None without any pair, or if `square` is 0.

        Also None if a pair is so far apart that its sums overflow.

        Args:
            updates: (k, r) one row per client.
            points: (k, d) one row per client.
            square: |u|^2 of the averaged update.
        """
        if len(updates) != len(points):
            raise InputError(f"expected an update and a point per client, but {len(updates)} and {len(points)} came")
        if len(updates) > MOST:
            chosen = np.linspace(0, len(updates) - 1, MOST).astype(int)
            updates, points = updates[chosen], points[chosen]
        if len(updates) < 2 or not square > 0:
            return None
        pairs = np.triu_indices(len(updates), 1)
        with np.errstate(over="ignore", invalid="ignore"):
            x, y = _distances(points)[pairs], _distances(updates)[pairs] / square
            sums = cls(float(x.mean()), float(y.mean()), float((x * x).mean()), float((x * y).mean()))
        return sums if np.isfinite(sums._all()).all() else None

    def mixed(self, newer: PairSums, kept: float) -> PairSums:
        """Return `kept` times these sums plus 1 - `kept` times the newer ones."""
        return PairSums(*(kept * old + (1 - kept) * new for old, new in zip(self._all(), newer._all(), strict=True)))

    def scaled(self, factor: float) -> PairSums:
        """Return the sums with all squared update distances multiplied by `factor`."""
        return PairSums(self.x, factor * self.y, self.xx, factor * self.xy)

    def line(self, apart: float = 0.0) -> tuple[float, float]:
        """Return s and nu by least squares, both at least 0.

        Args:
            apart: mean |p_i - p_j|^2 of the clients that the line is for, if known. Pairs that are much closer say
                nothing about the slope, and a prior in their unit would be amplified by the ratio.
        """
        # In units of the mean distance, so that slope and intercept are comparable.
        unit = max(self.x, CLOSE * apart)
        if self.xx <= 0 or not SMALLEST <= unit <= LARGEST:
            return 0.0, self.y / 2
        x, xx, xy = self.x / unit, self.xx / unit**2, self.xy / unit
        matrix = np.array([[xx + PRIOR, x - PRIOR], [x - PRIOR, 1.0 + PRIOR]])
        slope, intercept = np.linalg.solve(matrix, [xy, self.y])
        if slope < 0:
            slope, intercept = 0.0, self.y
        elif intercept < 0:
            slope, intercept = xy / max(xx, PRIOR), 0.0
        return float(slope) / unit, float(intercept) / 2

    def _all(self) -> tuple[float, float, float, float]:
        return self.x, self.y, self.xx, self.xy


def _distances(rows: FloatArray) -> FloatArray:
    """(k, k) squared distances between rows."""
    gram = rows @ rows.T
    squares = np.diag(gram)
    return np.maximum(squares[:, None] + squares[None, :] - 2.0 * gram, 0.0)
