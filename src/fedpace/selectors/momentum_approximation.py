"""Momentum approximation: FedBuff with past steps weighted as synchronous momentum would weight them.

Yu, Song, Wang and Chitnis, "Momentum Approximation in Asynchronous Private Federated Learning" (FL@FM-NeurIPS 2024).
A fixed number of clients is in flight, and K answers make a step, as in FedBuff. The server step finds weights on all
past aggregates by least squares (`server.momentum_approximation`, which also says what could not be verified).

Departure: if the clients' shares differ, updates are multiplied by share x clients, which has mean 1.

With a buffer as large as the fleet and equal delays, the method is exactly FedAvgM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.options import FINITE, Above, AtLeast, Between
from fedpace.core.server_rule import ServerRule
from fedpace.selectors._buffered import Buffered
from fedpace.server import momentum_approximation


@dataclass(frozen=True)
class MomentumApproximation(Buffered):
    """A full buffer, momentum corrected for staleness.

    Args:
        buffer: number of answers per step.
        in_flight: number of clients that train at a time; 0 = all that can be reached.
        momentum: part of the velocity that momentum keeps per step.
        staleness: weight of an update: (1 + lag) ** -staleness; 0 = stale updates count in full.
        lr: the server's step size.
        history: number of past aggregates to keep.
    """

    name: ClassVar[str] = "momentum-approximation"
    own_server: ClassVar[str] = "fedbuff"

    buffer: Annotated[int, AtLeast(1)] = 10
    in_flight: Annotated[int, AtLeast(0)] = 0
    momentum: Annotated[float, Between(0, 1, "[)")] = 0.9
    staleness: Annotated[float, AtLeast(0), FINITE] = 0.5
    lr: Annotated[float, Above(0), FINITE] = 0.3
    history: Annotated[int, AtLeast(1)] = 50

    @property
    def server(self) -> ServerRule[Any] | None:
        """The default server rule of this scheme; None = plain averaging."""
        return momentum_approximation.MomentumApproximation(self.momentum, self.lr, self.history)

    def weigh(self, lag: IntArray, counted: FloatArray) -> FloatArray:
        """Return the weights of stale answers, which fall with their lag."""
        return np.asarray(counted * (1.0 + lag) ** -self.staleness / self.buffer)
