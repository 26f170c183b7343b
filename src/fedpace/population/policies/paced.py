"""Ours: admit devices of each group so that their *answers* match the population, and step when waiting stops paying.

**Who starts.** Answers of group g arrive at the rate c_g (1 - q_g) / d_g, with c_g devices in flight, d_g the mean time
in flight and q_g the drop-out (Little's law). Answers match the population's shares p_g if

    c_g  proportional to  p_g d_g / (1 - q_g).

Answers need not arrive in these shares if their weights make up for it. With weights p_g / n_g for n_g answers, the
variance of a step is sum p_g^2 s^2 / n_g, and n_g answers occupy n_g d_g / (1 - q_g) seconds of places. Least variance
for the same places has n_g proportional to p_g / sqrt(d_g / (1 - q_g)). So `power` = 1 gives arrivals that match the
shares, and `power` = 1/2 the least variance, with quotas c_g proportional to p_g (d_g / (1 - q_g))^power. A group that
checks in too rarely to fill its quota leaves places to the others.

**Weights.** A group weighs p_g in a step; its answers share this weight, stale ones with less of it. With `catch_up`
above 1 it also weighs what it lacked in earlier steps in which it did not answer, up to `catch_up` times p_g. So the
model follows the population's objective whatever the order of arrivals.

**When to step.** A step with K answers costs K places' time and has the relative squared error s / K, with s =
(variance of one update) / (squared length of the mean update), both measured at each step. K / (1 - s / K) is least at
K = 2 s. The buffer is that large: larger when updates disagree, as at the end of training, and smaller when they agree.
With C devices in flight, an answer is C / K steps old on average. Momentum needs fresh answers, so the buffer holds at
least C / `max_lag` answers; it holds at most the part `most` of C.

**Momentum.** The server rule is `nesterov`, as for `pace`: its restarts and curvature bound need nothing tuned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.options import FINITE, Above, AtLeast, Between, Options
from fedpace.core.server_rule import ServerRule
from fedpace.population.book import GroupBook
from fedpace.server.nesterov import Nesterov

SPARE = 1.1
"""A group's quota is at most this many times what its check-ins can fill."""
ENOUGH_ENDED = 5
"""Tasks of a group that must have ended before its delay says how many places its check-ins can fill."""


@dataclass(frozen=True)
class Paced(Options):
    """Quotas per group by Little's law, weights that follow the population, steps when waiting stops paying.

    Args:
        power: quotas go with share x delay^power; 1 = arrivals match the shares, 1/2 = least variance.
        max_lag: most steps by which an answer is stale, on average.
        most: most answers per step, as a part of the allowed number of devices.
        buffer: fixed number of answers per step; 0 = chosen from measured noise.
        catch_up: most weight of a group in a step, as a multiple of its share; 0 = all answers weigh the same.
        staleness: an answer is divided by 1 + lag to this power, within its group.
        lengthen: FedExP's power in the server rule; 0 = steps are not lengthened beyond momentum.
    """

    name: ClassVar[str] = "paced"
    abandons: ClassVar[bool] = False

    power: Annotated[float, Between(0, 1)] = 0.5
    max_lag: Annotated[float, Above(0), FINITE] = 10.0
    most: Annotated[float, Above(0), FINITE] = 0.25
    buffer: Annotated[int, AtLeast(0)] = 0
    catch_up: Annotated[float, AtLeast(0), FINITE] = 1.0
    staleness: Annotated[float, AtLeast(0), FINITE] = 0.5
    lengthen: Annotated[float, Between(0, 1)] = 1.0

    @property
    def server(self) -> ServerRule[Any]:
        """Nesterov momentum with restarts."""
        return Nesterov(self.lengthen)

    def quotas(self, book: GroupBook, concurrency: int) -> FloatArray:
        """Return share x delay^power of each group, scaled to the allowed number of devices."""
        delays = book.delays / np.maximum(1 - book.failure_rates, 0.05)
        wanted = book.shares * delays**self.power
        supply = np.where(book.ended >= ENOUGH_ENDED, SPARE * book.check_in_rates * book.delays, np.inf)
        return filled(wanted, np.maximum(supply, 1.0), float(concurrency))

    def room(self, book: GroupBook, concurrency: int) -> int:
        """Return the free places."""
        return concurrency - book.training

    def chance(self, book: GroupBook, concurrency: int) -> float:
        """Return 1: a device whose group has room is admitted."""
        return 1.0

    def due(self, book: GroupBook, concurrency: int, now: float) -> bool:
        """Return whether the buffer holds twice the measured noise-to-signal ratio."""
        return int(book.in_buffer.sum()) >= self.answers_wanted(book, concurrency)

    def answers_wanted(self, book: GroupBook, concurrency: int) -> int:
        """Return the number of answers that the next step waits for."""
        if self.buffer:
            return self.buffer
        least = max(1, math.ceil(concurrency / self.max_lag))
        most = max(least, int(self.most * concurrency))
        if math.isnan(book.signal) or math.isnan(book.noise):
            return least
        return min(most, max(least, math.ceil(2 * book.noise / book.signal))) if book.signal > 0 else most

    def weigh(self, book: GroupBook, groups: IntArray, lags: IntArray) -> FloatArray:
        """Return weights that give each group its share, and what it lacked before."""
        fresh = (1.0 + lags) ** -self.staleness
        if not self.catch_up:
            return np.asarray(fresh / fresh.sum())
        held = np.bincount(groups, weights=fresh, minlength=len(book))
        wanted = np.clip(book.shares + book.deficit, 0.0, self.catch_up * book.shares)
        weights = wanted[groups] * fresh / held[groups]
        total = float(weights.sum())
        return weights / total if total > 0 else np.asarray(fresh / fresh.sum())


def filled(wanted: FloatArray, supply: FloatArray, total: float) -> FloatArray:
    """(groups,) parts of `total` in proportion to `wanted`, none above its `supply`; the others share what is left.

    If all supplies together are below the total, every group gets its supply.
    """
    found = np.zeros(wanted.size)
    open_ = wanted > 0
    left = total
    while open_.any() and left > 0:
        parts = np.where(open_, wanted, 0.0)
        parts *= left / parts.sum()
        short = open_ & (parts >= supply)
        if not short.any():
            return np.where(open_, parts, found)
        found[short] = supply[short]
        left = total - float(found.sum())
        open_ &= ~short
    return found
