"""FedAsync: asynchronous training without a buffer; every answer moves the model, stale ones less.

Xie, Koyejo and Gupta, "Asynchronous Federated Optimization" (2019). A fixed number of clients is in flight. When a
client answers, a random client takes its place and receives the current model. The server mixes each trained model x_i
into the current model when it arrives, however far the model has moved meanwhile:

    x <- (1 - a) x + a x_i,    a = alpha s(lag),    lag = steps made since the client received its model,

    s = 1 (constant), (1 + lag)^-power (polynomial), or 1 / (slope max(lag - tolerated, 0) + 1) (hinge).

The server step is `mixing`. The records count each step, of one client, as a round.

Where we depart, and why: the authors' clients train with a proximal term. Here, that is an option of the host:
algorithm = "fedprox" in [training]; the authors use mu = 0.005. If the clients' shares differ, a is multiplied by share
x clients, up to a = 1, so that steps follow the same objective as FedAvg. The authors draw the staleness at random up
to 4 or 16; here it follows from the delays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.options import FINITE, AtLeast, Between
from fedpace.core.server_rule import ServerRule
from fedpace.selectors._buffered import Buffered
from fedpace.server.mixing import Mixing

Discount = Literal["polynomial", "hinge", "constant"]


@dataclass(frozen=True)
class Fedasync(Buffered):
    """Every answer is mixed into the model as it comes.

    Args:
        alpha: weight of an answer to the current model; the model keeps the rest.
        in_flight: number of clients that train at a time; 0 = all that can be reached.
        discount: how the weight of stale answers falls with their lag.
        power: for `polynomial`: the weight of an answer is multiplied by (1 + lag) ** -power.
        slope: for `hinge`: how fast the weight falls beyond `tolerated`.
        tolerated: for `hinge`: the largest lag with full weight.
    """

    name: ClassVar[str] = "fedasync"
    not_with_sums: ClassVar[str] = "it steps with each single answer. Use fedbuff, or pace-async"
    own_server: ClassVar[str] = "fedbuff"
    buffer = 1

    alpha: Annotated[float, Between(0, 1, "(]")] = 0.6
    in_flight: Annotated[int, AtLeast(0)] = 0
    discount: Discount = "polynomial"
    power: Annotated[float, AtLeast(0), FINITE] = 0.5
    slope: Annotated[float, AtLeast(0), FINITE] = 10.0
    tolerated: Annotated[int, AtLeast(0)] = 4

    @property
    def server(self) -> ServerRule[Any] | None:
        """The default server rule of this scheme; None = plain averaging."""
        return Mixing()

    def weigh(self, lag: IntArray, counted: FloatArray) -> FloatArray:
        """Return the part of each answer in the next model."""
        return np.minimum(self.alpha * self.discounted(lag) * counted, 1.0)

    def discounted(self, lag: IntArray) -> FloatArray:
        """Return s(lag)."""
        if self.discount == "constant":
            return np.ones(lag.shape)
        if self.discount == "polynomial":
            return np.asarray((1.0 + lag) ** -self.power)
        return np.asarray(1.0 / (self.slope * np.maximum(lag - self.tolerated, 0) + 1.0))
