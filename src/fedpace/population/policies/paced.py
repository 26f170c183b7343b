"""Ours: places per group by Little's law, weights by share and delay, fresh answers first, an averaged model.

Where thousands of devices train at a time, the noise of single devices hardly matters: with twenty times as many
samples per device the targets of docs/scale.md are reached no sooner. Old answers cost the time. An answer that was
sent the model of d seconds ago is stable only for steps below about 1 / (d x curvature), and slow groups set d for the
data that only they hold. So this policy trades noise, which is cheap, for freshness.

**Who starts.** Answers of group g arrive at the rate c_g (1 - q_g) / d_g, with c_g devices in flight, d_g the mean time
in flight and q_g the drop-out (Little's law). Quotas are c_g proportional to p_g (d_g / (1 - q_g))^power, with p_g the
group's share of the population. With `power` = 1 arrivals match the shares; with 1/2 a step has the least variance for
the same places; with 0 every group has its share of the places. Fast groups answer with newer models, so less than 1/2
is faster. A group that checks in too rarely to fill its quota leaves places to the others.

**Weights.** A group's mean weight per step is v_g, proportional to p_g d_g^-damping. With `damping` = 0 it is the share
of the population. Then the answers of slow groups, which have a large weight and were sent old models, push the model
on long after it has what they ask for, and it swings. A buffer of B answers has B r_g answers of group g on average,
with r_g the group's part of all answers, and so at least one with the probability P_g. Where it has, the group weighs
v_g / P_g, but at most p_g or v_g, whichever is more, and all groups together weigh at most 1. Groups without an answer
leave their weight out. Within a group an answer of age t has the weight exp(-freshness t / d_g): devices that happened
to be quick count most, so that a slow group's mean update is about half as old as its answers are on average.

**When to step.** Each 1/30 of the allowed devices, so that slow answers are tens of small steps old.

**Which model.** Large steps on old answers swing around the path. The model to use is the mean over the last tenth of
all steps; devices train from the last model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.options import FINITE, Above, AtLeast, Between, Options
from fedpace.core.server_rule import ServerRule
from fedpace.population.admission import AdmissionPolicy
from fedpace.population.book import GroupBook
from fedpace.server.fedavgm import Fedavgm

SPARE = 1.1
"""A group's quota is at most this many times what its check-ins can fill."""
ENOUGH_ENDED = 5
"""Tasks of a group that must have ended before its delay says how many places its check-ins can fill."""
LEAST_EXPECTED = 1e-3
"""Least number of answers of a group that a step is expected to have; it keeps the weight of rare groups finite."""
BUFFERS, LEAST_BUFFER = 30, 10
"""The allowed devices fill so many buffers; a buffer holds at least so many answers."""


@dataclass(frozen=True)
class Paced(Options, AdmissionPolicy):
    """Quotas per group by Little's law, weights by share and delay, fresh answers first, an averaged model.

    Args:
        power: quotas go with share x delay^power; 1 = arrivals match the shares.
        buffer: number of answers per step; 0 = 1/30 of the allowed devices, but at least 10.
        freshness: weight of an answer within its group: exp(-freshness x age / mean delay); 0 = all weigh the same.
        damping: a group's mean weight goes with share x delay^-damping; 0 = its share of the population.
        lr: the server's step size.
        average: the model to use is the mean over this part of all steps; 0 = the last model.
    """

    name: ClassVar[str] = "paced"

    power: Annotated[float, Between(0, 1)] = 0.3
    buffer: Annotated[int, AtLeast(0)] = 0
    freshness: Annotated[float, AtLeast(0), FINITE] = 6.0
    damping: Annotated[float, Between(0, 1)] = 0.25
    lr: Annotated[float, Above(0), FINITE] = 1.25
    average: Annotated[float, Between(0, 1)] = 0.1

    @property
    def server(self) -> ServerRule[Any]:
        """The average with the policy's step size."""
        return Fedavgm(0.0, self.lr)

    @property
    def averaging(self) -> float:
        """The part of all steps over which the model to use is the mean."""
        return self.average

    def quotas(self, book: GroupBook, concurrency: int) -> FloatArray:
        """Return share x delay^power of each group, scaled to the allowed number of devices."""
        delays = book.delays / np.maximum(1 - book.failure_rates, 0.05)
        wanted = book.shares * delays**self.power
        supply = np.where(book.ended >= ENOUGH_ENDED, SPARE * book.check_in_rates * book.delays, np.inf)
        return filled(wanted, np.maximum(supply, 1.0), float(concurrency))

    def due(self, book: GroupBook, concurrency: int, now: float) -> bool:
        """Return whether the buffer is full."""
        return int(book.in_buffer.sum()) >= (self.buffer or max(LEAST_BUFFER, concurrency // BUFFERS))

    def weigh(self, book: GroupBook, groups: IntArray, lags: IntArray) -> FloatArray:
        """Return weights that give each group that answered its weight, most of it to its freshest answers."""
        ages = np.nan_to_num(lags * book.step_seconds)
        least = np.full(len(book), np.inf)
        np.minimum.at(least, groups, ages)
        fresh = np.exp(-self.freshness * (ages - least[groups]) / book.delays[groups])
        held = np.bincount(groups, weights=fresh, minlength=len(book))
        weights = self._group_weights(book, groups.size)
        return np.asarray((weights / max(1.0, float(weights[held > 0].sum())))[groups] * fresh / held[groups])

    def _group_weights(self, book: GroupBook, answers: int) -> FloatArray:
        """(groups,) weight of a group with an answer in a step of so many answers."""
        mean = book.shares * book.delays**-self.damping
        mean /= mean.sum()
        rates = book.in_flight * (1 - book.failure_rates) / book.delays
        expected = answers * rates / max(float(rates.sum()), np.finfo(float).tiny)
        present = -np.expm1(-np.maximum(expected, LEAST_EXPECTED))
        return np.asarray(np.minimum(mean / present, np.maximum(mean, book.shares)))


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
