"""Ringleader ASGD: asynchronous steps with a table of the clients' mean updates that is filled and emptied in turn.

Maranjyan and Richtarik, "Ringleader ASGD: The First Asynchronous SGD with Optimal Time Complexity under Data
Heterogeneity" (ICLR 2026). All clients train all the time. The method alternates between two phases:

1. Gathering. Every client that answers starts again from the current model. Its answers wait for the table. When every
   client has an answer, the table is made of the clients' means, and the model steps:

       x <- x + lr sum_i share_i m_i        (`server.client_means`).

   The client that answered last starts from the new model.
2. Stepping. The first answer of each other client joins its mean in the table, the model steps again, and the client
   starts from the new model. Further answers of a client wait for the next table. When every client has made a step,
   the next gathering begins.

So every client makes one step per cycle, however fast it is, and no answer is older than two cycles.

Departures: clients are weighted by shares, where the paper weights them equally. Clients that cannot be reached or that
failed are waited for in neither phase. Clients that complete the table at the same instant all start from the new
model. The records count each step as a round.

If all delays are equal and lr = 1, the method is exactly FedAvg with full participation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from fedpace._base.options import FINITE, Above
from fedpace.core.server_rule import ServerRule
from fedpace.core.tasks import Apply, Move, Wait
from fedpace.core.types import Diagnostics, Report, Scheme, View
from fedpace.selectors._buffered import mean_weights, missing
from fedpace.server.client_means import ClientMeans


@dataclass(frozen=True)
class Cycle:
    """State of ringleader."""

    first: int = -1
    """Version of the model before the first step of the second phase; -1 = gathering. A client that has not made its
    step yet still trains from this version or an older one."""


@dataclass(frozen=True)
class Ringleader(Scheme):
    """Averages client means; one step per client and cycle.

    Args:
        lr: the server's step size.
    """

    name: ClassVar[str] = "ringleader"
    not_with_sums: ClassVar[str] = (
        "its server keeps a table of single updates. Use pace-async, whose clients remember, or malenia"
    )
    rounds: ClassVar[bool] = False
    own_server: ClassVar[str] = "fedbuff"

    lr: Annotated[float, Above(0), FINITE] = 0.1

    @property
    def server(self) -> ServerRule[Any] | None:
        """The default server rule of this scheme; None = plain averaging."""
        return ClientMeans(self.lr)

    def init(self) -> Cycle:
        """Return the state before the first step."""
        return Cycle()

    def decide(self, state: Cycle, view: View, rng: np.random.Generator) -> tuple[Move, Cycle]:
        """Step if the table is full, or with the next client of the second phase; start all clients that can start."""
        hand, flying = view.in_hand, view.in_flight
        due = np.flatnonzero(hand.step <= state.first)
        if not due.size and not (flying.step <= state.first).any():
            state = Cycle()
        apply, facts, left = None, {}, len(hand)
        if state.first < 0 and len(hand) and not missing(view):
            apply = Apply(hand.ids, mean_weights(view, hand.clients), "delta")
            state, left = Cycle(view.step), 0
            facts = {"largest lag": int(view.step - hand.step.min()), "table": len(hand)}
        elif due.size:
            chosen = due[:1]
            apply = Apply(hand.ids[chosen], view.share[hand.clients[chosen]], "delta")
            left -= 1
            facts = {"largest lag": int(view.step - hand.step[chosen[0]])}
        start = view.candidates
        wait = Wait(1 if due.size > 1 else left + 1)
        return Move(start, np.zeros(start.size), apply, wait=wait, mode="delta", why=Diagnostics(facts=facts)), state

    def observe(self, state: Cycle, report: Report) -> Cycle:
        """Learn nothing from a step."""
        return state
