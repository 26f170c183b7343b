"""FADAS: FedBuff's buffer with an adaptive server step whose rate falls if answers are too old.

Wang, Wang, Lu and Chen, "FADAS: Towards Federated Adaptive Asynchronous Optimization" (ICML 2024). A fixed number of
clients is in flight. When the buffer holds M answers, AMSGrad steps with their mean (`server.fadas`); if the largest
delay in the buffer exceeds `tolerated`, the rate is at most one over that delay.

Departures: if the clients' shares differ, updates are multiplied by share x clients, which has mean 1. The delays count
steps, as in the paper; the paper's own default of the tolerated delay could not be verified.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from fedpace._base.options import FINITE, Above, AtLeast, Between
from fedpace.core.server_rule import ServerRule
from fedpace.selectors._buffered import Buffered
from fedpace.server import fadas


@dataclass(frozen=True)
class Fadas(Buffered):
    """Buffered; AMSGrad with smaller steps for stale answers.

    Args:
        buffer: number of answers per step; M in the paper.
        in_flight: number of clients that train at a time; 0 = all that can be reached.
        lr: the server's step size.
        beta_1: part of the running mean kept per step.
        beta_2: part of the running variance kept per step.
        tau: added to the divisor of each coordinate.
        tolerated: largest delay, in steps, with the full rate.
    """

    name: ClassVar[str] = "fadas"
    own_server: ClassVar[str] = "fedbuff"

    buffer: Annotated[int, AtLeast(1)] = 10
    in_flight: Annotated[int, AtLeast(0)] = 0
    lr: Annotated[float, Above(0), FINITE] = 0.01
    beta_1: Annotated[float, Between(0, 1, "[)")] = 0.9
    beta_2: Annotated[float, Between(0, 1, "[)")] = 0.99
    tau: Annotated[float, Above(0), FINITE] = 1e-3
    tolerated: Annotated[int, AtLeast(0)] = 1

    @property
    def server(self) -> ServerRule[Any] | None:
        """The default server rule of this scheme; None = plain averaging."""
        return fadas.Fadas(self.lr, self.beta_1, self.beta_2, self.tau, self.tolerated)
