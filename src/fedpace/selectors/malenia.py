"""Malenia SGD: a step when every client has answered; fast clients answer several times meanwhile.

Tyurin and Richtarik, "Optimal Time Complexities of Parallel Stochastic Optimization Methods Under a Fixed Computation
Model" (NeurIPS 2023). All clients train from the current model x. A client that answers starts again from the same x.
When the harmonic mean of the numbers B_i of answers is at least `answers`, the model steps with the mean of the
clients' means, tasks in flight are given up, and all clients start from the new model:

    x <- x + lr sum_i share_i (1 / B_i) sum_b u_ib.

Departures: clients are weighted by shares, where the paper weights them equally. Clients that cannot be reached or that
failed on the current model are not waited for.

If all delays are equal, the method is exactly FedAvg with full participation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from fedpace._base.options import FINITE, Above, AtLeast
from fedpace.core.server_rule import ServerRule
from fedpace.core.tasks import Apply, Move, Wait
from fedpace.core.types import Diagnostics, Stateless, View
from fedpace.selectors._buffered import mean_weights, missing
from fedpace.server.fedavgm import Fedavgm


@dataclass(frozen=True)
class Malenia(Stateless):
    """A step when every client has answered.

    Args:
        answers: smallest harmonic mean of the clients' numbers of answers; S / n in the paper, and 1 = one answer each.
        lr: the server's step size.
    """

    name: ClassVar[str] = "malenia"
    not_with: ClassVar[Mapping[str, str]] = {
        "scaffold": "clients answer several times from one model, and each answer moves their control variates. Use "
        "algorithm = 'fedavg', or use pace-async"
    }
    rounds: ClassVar[bool] = False

    answers: Annotated[float, AtLeast(1), FINITE] = 1.0
    lr: Annotated[float, Above(0), FINITE] = 1.0

    @property
    def server(self) -> ServerRule[Any] | None:
        """The default server rule of this scheme; None = plain averaging."""
        return None if self.lr == 1 else Fedavgm(0.0, self.lr)

    def decide(self, state: None, view: View, rng: np.random.Generator) -> tuple[Move, None]:
        """Step if enough answers of every client are in hand; otherwise start the idle clients."""
        hand = view.in_hand
        if len(hand) and not missing(view):
            counts = np.unique(hand.clients, return_counts=True)[1]
            if counts.size / np.sum(1.0 / counts) >= self.answers * (1 - 1e-9):
                apply = Apply(hand.ids, mean_weights(view, hand.clients), "average")
                facts = {"answers": len(hand), "clients": int(counts.size)}
                return Move(apply=apply, drop=view.in_flight.ids, wait=Wait(1), why=Diagnostics(facts=facts)), None
        start = view.candidates
        return Move(start, np.zeros(start.size), wait=Wait(len(hand) + 1)), None
