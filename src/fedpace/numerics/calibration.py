"""How far apart updates are, given how far apart clients' data are: a line through pairs of clients.

Moments say how clients differ in their data, up to a factor, and nothing of what is random in an update: minibatches,
few samples, local drift. If u_i = g + |g| (sqrt(s) p_i + e_i), with p_i the point of client i
(`fedpace.numerics.simplex`) and e_i independent errors of squared length nu, then for every pair

    |u_i - u_j|^2 / |g|^2  =  s |p_i - p_j|^2 + 2 nu      in expectation:

slope and intercept of a line. Rounds are remembered by the sums that the line follows from, older ones counting less.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace._base.errors import InputError

MOST = 256
"""Clients whose pairs are looked at: more would cost more than they tell."""
PRIOR = 0.01
"""Weight of the belief that slope and intercept explain as much each, which decides where pairs are all alike."""
CLOSE = 0.5
"""Of the mean squared distance of all clients, what pairs must have for their own to be the unit of that belief. Of
honest clients that answered they had 0.83 or more, since who is fast is not who holds like data."""
SMALLEST = 1e-150
"""Below this, squared distances are not squared again: they would vanish."""
LARGEST = 1e150
"""Above this neither: they would overflow. Moments of 1e-194 beside 1e-66 are as far apart."""


@dataclass(frozen=True)
class PairSums:
    """Means over pairs: x = |p_i - p_j|^2, y = |u_i - u_j|^2 in units of |u|^2."""

    x: float
    y: float
    xx: float
    xy: float

    @classmethod
    def of(cls, updates: FloatArray, points: FloatArray, square: float) -> PairSums | None:
        """Return the sums over pairs of clients; None where there is no pair, or nothing to measure it by.

        None as well where a pair is so far apart that its sums overflow: no line follows from it.

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
        """Return the sums with newer ones in them; these count `kept`."""
        return PairSums(*(kept * old + (1 - kept) * new for old, new in zip(self._all(), newer._all(), strict=True)))

    def scaled(self, factor: float) -> PairSums:
        """Return the sums with all disagreement multiplied by `factor`."""
        return PairSums(self.x, factor * self.y, self.xx, factor * self.xy)

    def line(self, apart: float = 0.0) -> tuple[float, float]:
        """Return s and nu: least squares with neither below 0.

        Args:
            apart: mean |p_i - p_j|^2 of the clients that the line is for, where that is known. Pairs that are much
                closer say nothing of the slope; a belief that is held in their unit would be multiplied by as much.
        """
        # In units of the mean distance, so that slope and intercept are of one kind.
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
    """(k, k) squared distances."""
    gram = rows @ rows.T
    squares = np.diag(gram)
    return np.maximum(squares[:, None] + squares[None, :] - 2.0 * gram, 0.0)
