"""CA2FL: FedBuff with a cache of every client's last update.

Wang, Cao, Wu, Chen and Chen, "Tackling the Data Heterogeneity in Asynchronous Federated Learning with Cached Update
Calibration" (ICLR 2024). Fast clients answer more often than slow ones, so that a plain buffer pulls the model toward
the optimum of the fast clients. CA2FL keeps the last update h_i of every client, and the buffered answers only correct
the mean of the cache. With K answers and u_i = trained - received:

    v = h + 1/K sum_i (u_i - h_i),    x <- x + lr v,    then h_i <- u_i if client i answered, h <- mean of all h_i.

All h_i are 0 at first. The server step `calibrated` holds the cache, which is as large as one model per client. As in
FedBuff, a fixed number of clients is in flight, and random clients replace those that answer. Stale answers are not
discounted.

Departures: if the clients' shares differ, corrections are multiplied by share x clients, and h is weighted by shares,
so that the expected step is that of FedAvg. The paper weights all clients equally. The paper also combines the cache
with Adam or AMSGrad. Here, another rule in [server] replaces the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from fedpace._base.options import FINITE, Above, AtLeast
from fedpace.core.server_rule import ServerRule
from fedpace.selectors._buffered import Buffered
from fedpace.server.calibrated import Calibrated


@dataclass(frozen=True)
class Ca2fl(Buffered):
    """A full buffer, corrected by all clients' last updates.

    Args:
        buffer: number of answers per step; 10 in the paper.
        in_flight: number of clients that train at a time; 0 = all that can be reached.
        lr: the server's step size.
    """

    name: ClassVar[str] = "ca2fl"
    not_with_sums: ClassVar[str] = (
        "its server remembers the last update of each client. Use pace-async, whose clients remember, or fedbuff"
    )
    own_server: ClassVar[str] = "fedbuff"

    buffer: Annotated[int, AtLeast(1)] = 10
    in_flight: Annotated[int, AtLeast(0)] = 0
    lr: Annotated[float, Above(0), FINITE] = 1.0

    @property
    def server(self) -> ServerRule[Any] | None:
        """The default server rule of this scheme; None = plain averaging."""
        return Calibrated(self.lr)
