"""FedBuff: asynchronous training with a buffer; the model steps whenever the buffer holds K answers.

Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation" (AISTATS 2022). A fixed number of clients is
in flight. When a client answers, a random client takes its place and receives the current model. When the buffer holds
K answers, the model steps and the buffer is emptied:

    x <- x + lr / K sum_i (1 + lag_i)^-1/2 u_i,    u_i = trained - received, lag_i = steps since the client received x.

The records count each step as a round.

Departure: if the clients' shares differ, updates are multiplied by share x clients, which has mean 1. Steps then follow
the same objective as FedAvg. The paper weights all clients equally.

With a buffer as large as the fleet and equal delays, the method is exactly FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.options import FINITE, Above, AtLeast, Between
from fedpace.core.server_rule import ServerRule
from fedpace.selectors._buffered import Buffered
from fedpace.server.fedavgm import Fedavgm


@dataclass(frozen=True)
class Fedbuff(Buffered):
    """A step whenever the buffer is full; without rounds.

    Args:
        buffer: number of answers per step; K = 10 in the paper.
        in_flight: number of clients that train at a time; 0 = all that can be reached.
        staleness: weight of an update: (1 + lag) ** -staleness; 0 = stale updates count in full.
        lr: the server's step size.
        momentum: momentum of the server step (FedAvgM).
    """

    name: ClassVar[str] = "fedbuff"

    buffer: Annotated[int, AtLeast(1)] = 10
    in_flight: Annotated[int, AtLeast(0)] = 0
    staleness: Annotated[float, AtLeast(0), FINITE] = 0.5
    lr: Annotated[float, Above(0), FINITE] = 1.0
    momentum: Annotated[float, Between(0, 1, "[)")] = 0.0

    @property
    def server(self) -> ServerRule[Any] | None:
        """The default server rule of this scheme; None = plain averaging."""
        return None if (self.lr, self.momentum) == (1, 0) else Fedavgm(self.momentum, self.lr)

    def weigh(self, lag: IntArray, counted: FloatArray) -> FloatArray:
        """Return the weights of stale answers, which fall with their lag."""
        return np.asarray(counted * (1.0 + lag) ** -self.staleness / self.buffer)
