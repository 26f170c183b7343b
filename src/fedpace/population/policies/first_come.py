"""First come, first served, with a buffer: what FedBuff does with devices that check in.

Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation" (AISTATS 2022), and Huba et al., "Papaya:
Practical, Private, and Scalable Federated Learning" (MLSys 2022). Any device that checks in trains, as long as fewer
than the allowed number train. When the buffer holds K answers, the model steps:

    x <- x + lr / K sum_i (1 + lag_i)^-staleness u_i.

`over_selection` admits so many times the allowed number of devices. Answers with a lag above `max_lag` weigh nothing.
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


@dataclass(frozen=True)
class FirstCome(Options, AdmissionPolicy):
    """Every device that checks in, while there is room; a step whenever the buffer is full.

    Args:
        buffer: number of answers per step.
        over_selection: devices in flight, as a multiple of the allowed number.
        staleness: weight of an answer: (1 + lag) ** -staleness; 0 = stale answers count in full.
        max_lag: answers that are older, in steps, weigh nothing; 0 = no limit.
        lr: the server's step size.
        momentum: momentum of the server step (FedAvgM).
        average: the model to use is the mean over this part of all steps; 0 = the last model, as in FedBuff.
    """

    name: ClassVar[str] = "first-come"

    buffer: Annotated[int, AtLeast(1)] = 100
    over_selection: Annotated[float, AtLeast(1), FINITE] = 1.3
    staleness: Annotated[float, AtLeast(0), FINITE] = 0.5
    max_lag: Annotated[int, AtLeast(0)] = 0
    lr: Annotated[float, Above(0), FINITE] = 1.0
    momentum: Annotated[float, Between(0, 1, "[)")] = 0.0
    average: Annotated[float, Between(0, 1)] = 0.0

    @property
    def server(self) -> ServerRule[Any]:
        """FedAvgM with the policy's step size and momentum."""
        return Fedavgm(self.momentum, self.lr)

    @property
    def averaging(self) -> float:
        """The part of all steps over which the model to use is the mean."""
        return self.average

    def room(self, book: GroupBook, concurrency: int) -> int:
        """Return the free places."""
        return int(self.over_selection * concurrency) - book.training

    def due(self, book: GroupBook, concurrency: int, now: float) -> bool:
        """Return whether the buffer is full."""
        return int(book.in_buffer.sum()) >= self.buffer

    def weigh(self, book: GroupBook, groups: IntArray, lags: IntArray) -> FloatArray:
        """Return equal weights, less for stale answers."""
        weights = (1.0 + lags) ** -self.staleness / groups.size
        return np.where(lags > self.max_lag, 0.0, weights) if self.max_lag else weights
