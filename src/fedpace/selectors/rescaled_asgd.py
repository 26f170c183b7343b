"""Rescaled ASGD: every answer moves the model, by a step in proportion to the time that its client takes.

Mahran, Maranjyan and Richtarik, "Rescaled Asynchronous SGD: Optimal Distributed Optimization under Data and System
Heterogeneity" (2026). All clients train all the time. When client i answers,

    x <- x + lr_i u_i,        lr_i = lr tau_i / mean of all tau,

with tau_i the seconds that the client takes, and the client starts again from the new model. Fast clients answer more
often by the factor by which their steps are shorter, so all clients add the same rate per second, and the method
follows the mean of the clients' objectives. It needs no memory.

Departures: tau is the current estimate of the delays, where the paper's are fixed. If the clients' shares differ, lr_i
is multiplied by share x clients. The paper's scale of lr could not be verified; here lr is the mean of lr_i.

With equal delays, n answers that arrive together move the model by lr times the sum of their updates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fedpace._base.options import FINITE, Above
from fedpace.core.tasks import Apply, Move, Wait
from fedpace.core.types import Diagnostics, Need, Stateless, View
from fedpace.selectors._buffered import counted


@dataclass(frozen=True)
class RescaledAsgd(Stateless):
    """A step per answer, longer for slow clients.

    Args:
        lr: mean step size of the server.
    """

    name: ClassVar[str] = "rescaled-asgd"
    not_with_sums: ClassVar[str] = "it steps with each single answer. Use fedbuff, or pace-async"
    uses: ClassVar[frozenset[Need]] = frozenset({Need.DELAY})
    rounds: ClassVar[bool] = False

    lr: Annotated[float, Above(0), FINITE] = 0.1

    def decide(self, state: None, view: View, rng: np.random.Generator) -> tuple[Move, None]:
        """Apply the next answer, and start all clients that can start."""
        hand, apply, facts = view.in_hand, None, {}
        if len(hand):
            first = hand.clients[:1]
            factor = counted(view, first) * self._relative(view, int(first[0]))
            apply = Apply(hand.ids[:1], self.lr * factor, "delta")
            facts = {"largest lag": int(view.step - hand.step[0]), "factor": float(factor[0])}
        start = view.candidates
        wait = Wait(1)
        return Move(start, np.zeros(start.size), apply, wait=wait, mode="delta", why=Diagnostics(facts=facts)), None

    @staticmethod
    def _relative(view: View, row: int) -> float:
        """Return a client's delay over the mean of all known delays; 1 if it is unknown."""
        known = view.delay[view.delay > 0]  # False for NaN
        return float(view.delay[row] / known.mean()) if view.delay[row] > 0 else 1.0
