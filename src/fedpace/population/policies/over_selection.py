"""Synchronous rounds with over-selection.

Bonawitz et al., "Towards Federated Learning at Scale: System Design" (MLSys 2019): a round that needs K answers admits
1.3 K devices, steps with the first K answers and abandons the others. Abandoned devices have trained for nothing.
"""

from __future__ import annotations

import math
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
class OverSelection(Options, AdmissionPolicy):
    """Rounds of the first devices that check in; the slowest are abandoned.

    Args:
        factor: devices admitted per answer that a round needs.
        goal: answers that a round needs; 0 = as many as fit: concurrency / factor.
        timeout: seconds after which a round steps with the answers that it has.
        lr: the server's step size.
        momentum: momentum of the server step (FedAvgM).
    """

    name: ClassVar[str] = "over-selection"

    factor: Annotated[float, AtLeast(1), FINITE] = 1.3
    goal: Annotated[int, AtLeast(0)] = 0
    timeout: Annotated[float, Above(0), FINITE] = 1800.0
    lr: Annotated[float, Above(0), FINITE] = 1.0
    momentum: Annotated[float, Between(0, 1, "[)")] = 0.0

    @property
    def abandons(self) -> bool:
        """Return True: a round ends all its tasks."""
        return True

    @property
    def server(self) -> ServerRule[Any]:
        """FedAvgM with the policy's step size and momentum."""
        return Fedavgm(self.momentum, self.lr)

    def room(self, book: GroupBook, concurrency: int) -> int:
        """Return the devices that the round still admits; places of devices that dropped out stay empty."""
        return self._admitted(concurrency) - book.started

    def due(self, book: GroupBook, concurrency: int, now: float) -> bool:
        """Return whether the goal is reached, no device is left to wait for, or the round has lasted too long."""
        if now - book.stepped_at >= self.timeout:
            return True
        admitted = self._admitted(concurrency)
        goal = min(self.goal, concurrency) if self.goal else math.floor(admitted / self.factor)
        waits = book.training > 0 or book.started < admitted
        return int(book.in_buffer.sum()) >= max(goal, 1) or not waits

    def weigh(self, book: GroupBook, groups: IntArray, lags: IntArray) -> FloatArray:
        """Return equal weights."""
        return np.full(groups.size, 1.0 / groups.size)

    def _admitted(self, concurrency: int) -> int:
        return min(concurrency, math.ceil(self.factor * self.goal)) if self.goal else concurrency
