"""FedBuff with what every client sent last: CA2FL.

Wang, Cao, Wu, Chen and Chen, "Tackling the Data Heterogeneity in Asynchronous Federated Learning with Cached Update
Calibration" (ICLR 2024). Fast clients answer more often than slow ones, and a buffer of theirs pulls the model to their
own optimum. So the server keeps the last update h_i of every client, and the answers in the buffer only correct their
mean. With K answers, u_i = trained - received:

    v = h + 1/K sum_i (u_i - h_i),    x <- x + lr v,    then h_i <- u_i of those that answered, h <- mean of all h_i,

all of them 0 at first. The cache is that of the server's rule `calibrated`: as many models as there are clients. Who is
at work is as in FedBuff: so many clients, replaced at random as they answer. Answers are not discounted by their age.

Where we depart, and why: where shares of clients differ, corrections are multiplied by share x clients and h is
weighted by shares, so that the expected step is that of FedAvg; the authors count all clients alike. They let Adam or
AMSGrad make the step too, which is any other rule of [server], without the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedpace._base.checks import FloatArray, IntArray, above, finite, whole
from fedpace.core.stepping import ServerStep
from fedpace.core.tasks import Move
from fedpace.core.types import Need, Stateless, View
from fedpace.selectors._buffered import buffered
from fedpace.server.calibrated import Calibrated


@dataclass(frozen=True)
class Ca2fl(Stateless):
    """A full buffer, corrected by everybody's last update.

    Args:
        buffer: answers that make a step; the authors' 10.
        in_flight: clients at work at any time; 0 = all that can be reached.
        lr: the server's step size.
    """

    name: ClassVar[str] = "ca2fl"
    needs: ClassVar[frozenset[Need]] = frozenset()
    rounds: ClassVar[bool] = False

    buffer: int = 10
    in_flight: int = 0
    lr: float = 1.0

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        whole(self.buffer, 1, "buffer of ca2fl")
        whole(self.in_flight, 0, "in_flight of ca2fl")
        above(self.lr, 0, "lr of ca2fl")
        finite(self.lr, "lr of ca2fl")

    @property
    def server(self) -> ServerStep[Any] | None:
        """The server step that this scheme uses by default; None = the plain average."""
        return Calibrated(self.lr)

    def decide(self, state: None, view: View, rng: np.random.Generator) -> tuple[Move, None]:
        """Step where the buffer is full, and let others take the places of those that answered."""
        return buffered(view, rng, buffer=self.buffer, in_flight=self.in_flight, weigh=self._weigh), None

    def _weigh(self, lag: IntArray, counted: FloatArray) -> FloatArray:
        return counted / self.buffer
