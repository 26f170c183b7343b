"""Distribution of answer lateness, and the best deadline for a cohort.

A client with an expected delay of tau seconds answers after tau times a random lateness, which has the same
distribution for all clients. The distribution is estimated from past answers. Answers that were given up count as
censored: they would have taken longer.

The distribution may change suddenly, for example when a network slows down. The history then misleads: it predicts that
deadlines will be met although no client meets them, and each missed deadline shows only that it was missed. So a round
that goes far worse than expected (`present`) splits the history. From the older part only the shape is used, stretched
by the factor that the newer answers suggest (`Lateness.since`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import BoolArray, FloatArray, float_array
from fedpace._base.errors import InputError

LEAST = 10
"""Smallest number of answers for an estimate."""
INSTANTS = 200
"""Number of possible ends of the round that are compared."""
MAJORITY = 0.5
"""Weight that must be expected to arrive; less does not represent the cohort."""
ROUNDING = 1e-9
SURPRISE = 1e-3
"""A number of answers less likely than this means that the lateness has changed."""
BACKOFF = 2.0
"""Half of the clients given up after r are assumed to need more than this times r. This holds if the probability of
taking longer halves whenever the time doubles, a tail without a scale of its own."""
ANEW = 50
"""Number of answers since a change from which older answers are no longer used."""
UNBROKEN = -1
"""Value of `fresh` if all answers show the current lateness."""


@dataclass(frozen=True, eq=False)
class Lateness:
    """A discrete distribution of the ratio of actual to expected time."""

    ratios: FloatArray
    """Ascending ratios."""
    mass: FloatArray

    @classmethod
    def estimated(cls, ratios: ArrayLike, given_up: ArrayLike) -> Lateness:
        """Return the product-limit estimate (Kaplan and Meier, 1958).

        By Efron's rule, the mass of a given-up answer is shared equally by those that took longer, from left to right.
        The longest entry counts as an answer, even if it was given up.
        """
        seen = float_array(ratios, "ratios")
        cut = np.asarray(given_up, dtype=np.bool_)
        if seen.size == 0 or cut.shape != seen.shape:
            raise InputError(
                f"expected some ratios, and for each whether it was given up: {seen.size}, {cut.size} came"
            )
        order = np.lexsort((cut, seen))  # of equal ratios, answers come first
        seen, cut = seen[order], cut[order]
        behind = np.arange(seen.size, 0, -1.0)  # this entry and all later ones
        passed = np.where(cut, 1.0, 1.0 - 1.0 / behind)
        passed[-1] = 0.0
        above = np.concatenate([[1.0], np.cumprod(passed)])
        return cls(seen, above[:-1] - above[1:])

    @classmethod
    def since(cls, ratios: ArrayLike, given_up: ArrayLike, fresh: int) -> Lateness:
        """Return the estimate if only the newest `fresh` answers are known to show the current lateness.

        Older ratios are stretched until their median equals the typical ratio of the newest, but never shortened. If no
        client has answered since the change, the typical ratio is twice the longest wait. The next deadline of the same
        clients then doubles, until a client meets one.

        Args:
            ratios: actual over expected times, newest last.
            given_up: whether each answer was given up.
            fresh: number of newest answers, as `present` counts them; may exceed the number of ratios. `UNBROKEN` =
                all.
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
            # If fewer than half of them answered, the shape is unknown: assume that every client takes the typical
            # time.
            return cls.estimated(now, now_cut) if seen_half else cls(np.array([middle]), np.ones(1))
        before, before_cut = seen[:start], cut[:start]
        median = cls.estimated(before, before_cut).median
        factor = max(1.0, middle / median) if median > 0 else 1.0
        return cls.estimated(np.concatenate([before * factor, now]), np.concatenate([before_cut, now_cut]))

    @property
    def median(self) -> float:
        """The median ratio."""
        return float(self.ratios[np.searchsorted(np.cumsum(self.mass), 0.5 - ROUNDING)])

    def within(self, ratios: FloatArray) -> FloatArray:
        """Return the probabilities that answers take at most `ratios` times as long as expected."""
        below = np.concatenate([[0.0], np.cumsum(self.mass)])
        return np.asarray(below[np.searchsorted(self.ratios, ratios * (1 + ROUNDING), side="right")])


def typical(ratios: FloatArray, given_up: BoolArray) -> float:
    """Return the product-limit median; if fewer than half answered, `BACKOFF` times the longest ratio."""
    order = np.lexsort((given_up, ratios))
    behind = np.arange(ratios.size, 0, -1.0)
    above = np.cumprod(np.where(given_up[order], 1.0, 1.0 - 1.0 / behind))
    half = np.flatnonzero(above <= 0.5 + ROUNDING)
    return float(ratios[order[half[0]]]) if half.size else BACKOFF * float(ratios.max())


def present(fresh: int, new: int, *, arrivals: float, finished: int) -> int:
    """Return how many of the newest answers show the current lateness, after a round that added `new` answers.

    If no client finished, or so few that it was nearly impossible given the expected number of `arrivals` (probability
    below `SURPRISE` by Chernoff's bound), the lateness has changed, and only this round's answers count.

    Args:
        fresh: the number so far; `UNBROKEN` = all.
        new: answers that the round added, including those given up.
        arrivals: `Deadline.arrivals` of the round.
        finished: number of clients that finished.
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
    """Infinite = wait for all clients."""
    expected: float
    """Expected seconds of the round."""
    error: float
    """Expected relative squared error of the gradient, with some clients missing the deadline."""
    arrivals: float
    """Expected number of clients that meet the deadline."""


def best_deadline(
    delays: FloatArray, weights: FloatArray, points: FloatArray, lateness: Lateness, *, own: float = 0.0
) -> Deadline | None:
    """Return the deadline with the smallest expected seconds / progress; None if every error is at least 1.

    A round makes progress 1 - error if at least one client finishes, and none otherwise. If all delays are 0, waiting
    is free, and the round waits for all clients.

    Args:
        delays: (k,) expected seconds of the cohort's clients.
        weights: (k,) summing to 1; the clients that arrive share the weight of the others.
        points: (k, r) as in `fedpace.numerics.simplex`: the error of a mixture is the squared length of its point.
        lateness: distribution of the lateness, independent between clients.
        own: squared independent error of each client.
    """
    # Only instants at which an answer may arrive are compared: waiting between two of them brings nothing.
    instants = np.outer(delays, lateness.ratios)
    ends = np.unique(np.quantile(instants, np.linspace(0.0, 1.0, INSTANTS), method="inverted_cdf"))
    if ends[-1] == 0:
        mixture = weights @ points
        error = float(mixture @ mixture) + own * float(weights @ weights)
        return Deadline(math.inf, 0.0, error, float(delays.size)) if error < 1 - ROUNDING else None
    # Clients with delay 0 are always in time, also at 0 / 0.
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
        best = last  # leaving out clients gains nothing
    everybody = best == last
    return Deadline(
        math.inf if everybody else float(ends[best]),
        float(seconds[best]),
        float(error[best]),
        float(in_time[best].sum()),
    )
