"""How late answers come, and how long a cohort is worth waiting for.

A client that is expected after tau seconds answers after tau times a random lateness, which has one distribution for
all. It is estimated from what was seen, those that were given up included: of them it is known only that they would
have taken longer.

That distribution may change all at once, such as when a network slows down. The history then misleads: it says that
deadlines will be met which nobody meets, and what is learnt from each of those is only that it was missed. So a round
that went far worse than was expected (`present`) parts the history in two, and of what came before it only the shape is
used, stretched by the factor that the answers since then ask for (`Lateness.since`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import BoolArray, FloatArray, float_array
from fedpace._base.errors import InputError

LEAST = 10
"""Answers from which the distribution is estimated at the earliest."""
INSTANTS = 200
"""Ends of the round that are looked at."""
MAJORITY = 0.5
"""The weight that must be expected to arrive: fewer do not speak for their cohort."""
ROUNDING = 1e-9
SURPRISE = 1e-3
"""A number of answers so small that it is less likely than this says that lateness has changed."""
BACKOFF = 2.0
"""Of clients that were given up after r, half are taken to need more than this times r: so it is wherever the chance
of taking longer halves as the time doubles, the tail that has no scale of its own."""
ANEW = 50
"""Answers since a change from which on those before it are no longer needed."""
UNBROKEN = -1
"""All that is remembered is of the present."""


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

    @classmethod
    def since(cls, ratios: ArrayLike, given_up: ArrayLike, fresh: int) -> Lateness:
        """Return the estimate where only the newest `fresh` are known to be of the present.

        Those before are stretched until their typical ratio is that of the newest, but never made shorter. If nobody
        answered at all since, that is twice the longest that anybody was waited for, so that the next deadline of the
        same clients is at least twice as long; and so on until somebody meets one.

        Args:
            ratios: times taken over times expected, the newest last.
            given_up: whether each was given up.
            fresh: as `present` counts them, more than are remembered included; `UNBROKEN` = all are of the present.
        """
        seen = float_array(ratios, "ratios")
        cut = np.asarray(given_up, dtype=np.bool_)
        if fresh < 0 or seen.size == 0 or cut.shape != seen.shape:
            return cls.estimated(seen, cut)
        if fresh == 0:
            raise InputError(f"expected at least 1 newest ratio, or {UNBROKEN} for all, but 0 came")
        start = max(seen.size - fresh, 0)
        now, now_cut = seen[start:], cut[start:]
        middle = typical(now, now_cut)
        seen_half = middle <= float(now.max())
        if start == 0 or (fresh >= ANEW and seen_half):
            # Where not even half of them were seen to answer there is no shape: everybody takes as long as is typical.
            return cls.estimated(now, now_cut) if seen_half else cls(np.array([middle]), np.ones(1))
        before, before_cut = seen[:start], cut[:start]
        median = cls.estimated(before, before_cut).median
        factor = max(1.0, middle / median) if median > 0 else 1.0
        return cls.estimated(np.concatenate([before * factor, now]), np.concatenate([before_cut, now_cut]))

    @property
    def median(self) -> float:
        """The ratio that half of the answers do not exceed."""
        return float(self.ratios[np.searchsorted(np.cumsum(self.mass), 0.5 - ROUNDING)])

    def within(self, ratios: FloatArray) -> FloatArray:
        """Return the probabilities of answers that take at most `ratios` times as long as expected."""
        below = np.concatenate([[0.0], np.cumsum(self.mass)])
        return np.asarray(below[np.searchsorted(self.ratios, ratios * (1 + ROUNDING), side="right")])


def typical(ratios: FloatArray, given_up: BoolArray) -> float:
    """Return the product-limit median; where half of them were not seen to answer, `BACKOFF` x the longest."""
    order = np.lexsort((given_up, ratios))
    behind = np.arange(ratios.size, 0, -1.0)
    above = np.cumprod(np.where(given_up[order], 1.0, 1.0 - 1.0 / behind))
    half = np.flatnonzero(above <= 0.5 + ROUNDING)
    return float(ratios[order[half[0]]]) if half.size else BACKOFF * float(ratios.max())


def present(fresh: int, new: int, *, arrivals: float, finished: int) -> int:
    """Return how many of the newest answers are of the present, after a round that added `new` of them.

    A round that nobody finished, or so few that at the expected number of `arrivals` it was next to impossible (by
    Chernoff's bound, below `SURPRISE`), begins a new present: lateness is not what it was.

    Args:
        fresh: the count so far; `UNBROKEN` = all.
        new: answers that the round added, those given up included.
        arrivals: `Deadline.arrivals` of the round.
        finished: how many made it.
    """
    missing = max(arrivals - finished, 0.0)
    surprised = finished == 0 or missing**2 > -2.0 * math.log(SURPRISE) * arrivals
    if new > 0 and surprised:
        return new
    return fresh if fresh < 0 else fresh + new


@dataclass(frozen=True)
class Deadline:
    """When to end a round."""

    seconds: float
    """Infinite: when everybody has answered."""
    expected: float
    """Mean seconds that the round then takes."""
    error: float
    """Relative squared error of its gradient, with those missing that are expected to miss it."""
    arrivals: float
    """Clients that are expected to make it."""


def best_deadline(
    delays: FloatArray, weights: FloatArray, points: FloatArray, lateness: Lateness, *, own: float = 0.0
) -> Deadline | None:
    """Return the deadline with the least expected seconds / progress; None where no error is below 1.

    A round that somebody finishes brings 1 - error, and one that nobody finishes brings nothing.
    Where nobody takes any time, waiting is free, and everybody is waited for.

    Args:
        delays: (k,) expected seconds of the cohort's clients.
        weights: (k,) that sum to 1; those that arrive share the weight of those that do not.
        points: (k, r) as for `fedpace.numerics.simplex`: the error of a mixture is the squared length of its point.
        lateness: how late answers come, independently of one another.
        own: squared length of each point's own coordinate.
    """
    # Instants at which somebody may answer: to end a round between two of them is to wait for nothing.
    instants = np.outer(delays, lateness.ratios)
    ends = np.unique(np.quantile(instants, np.linspace(0.0, 1.0, INSTANTS), method="inverted_cdf"))
    if ends[-1] == 0:
        mixture = weights @ points
        error = float(mixture @ mixture) + own * float(weights @ weights)
        return Deadline(math.inf, 0.0, error, float(delays.size)) if error < 1 - ROUNDING else None
    # Who takes no time is there whatever the end: 0 / 0 included.
    waited = np.full((ends.size, delays.size), math.inf)
    in_time = lateness.within(np.divide(ends[:, None], delays, out=waited, where=delays > 0))
    open_ = 1.0 - in_time.prod(axis=1)
    seconds = ends[0] + np.concatenate([[0.0], np.cumsum(open_[:-1] * np.diff(ends))])
    arrived = in_time @ weights
    usable: BoolArray = arrived > MAJORITY
    ends, in_time, seconds, arrived = ends[usable], in_time[usable], seconds[usable], arrived[usable]
    mixtures = (in_time * weights) @ points / arrived[:, None]
    spread = (points**2).sum(axis=1) - 2.0 * mixtures @ points.T + (mixtures**2).sum(axis=1)[:, None]
    squares = (weights / arrived[:, None]) ** 2 * in_time
    error = (mixtures**2).sum(axis=1) + (squares * ((1.0 - in_time) * spread + own)).sum(axis=1)
    progress = (1.0 - error) * (1.0 - (1.0 - in_time).prod(axis=1))
    cost = np.full(ends.size, math.inf)
    np.divide(seconds, progress, out=cost, where=(error < 1 - ROUNDING) & (ends > 0))
    best = int(np.argmin(cost))
    if not math.isfinite(cost[best]):
        return None
    last = ends.size - 1
    if cost[best] >= cost[last] * (1 - ROUNDING):
        best = last  # nothing is gained by leaving anybody out
    everybody = best == last
    return Deadline(
        math.inf if everybody else float(ends[best]),
        float(seconds[best]),
        float(error[best]),
        float(in_time[best].sum()),
    )
