"""ACE, ACED and MIFA without rounds: every step uses the last update of every client.

Chang et al., "Mitigating Participation Imbalance Bias in Asynchronous Federated Learning" (2025; ACE and ACED); Gu,
Huang, Zhang and Huang, "Fast Federated Learning in the Presence of Arbitrary Device Unavailability" (NeurIPS 2021;
MIFA). All clients train all the time. The server stores the last update h_i of every client; a new answer replaces it:

    x <- x + lr sum_i share_i h_i        (`server.last_updates`).

- ACE steps at every answer (`buffer = 1`), once every client has answered.
- ACED leaves out entries older than `max_age` steps.
- MIFA, freed from rounds, steps after `buffer` answers and does not wait for all clients first
  (`wait_for_all = False`).

Departures: entries are weighted by shares, where the papers weight all clients equally. The first step does not wait
for clients that cannot be reached or that failed. MIFA counts clients that never answered as 0; here, the mean is over
the clients that have answered.

With a buffer as large as the fleet and equal delays, the method is exactly FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from fedpace._base.options import FINITE, Above, AtLeast
from fedpace.core.server_rule import ServerRule
from fedpace.core.tasks import Apply, Move, Wait
from fedpace.core.types import Diagnostics, Stateless, View
from fedpace.selectors._buffered import mean_weights, missing
from fedpace.server.last_updates import LastUpdates


@dataclass(frozen=True)
class Ace(Stateless):
    """Steps by the mean of all clients' latest updates.

    Args:
        buffer: number of answers per step; 1 in ACE.
        lr: the server's step size.
        max_age: number of steps after which an update no longer counts (ACED); 0 = it always counts.
        wait_for_all: make the first step when every client has answered, as ACE does.
    """

    name: ClassVar[str] = "ace"
    not_with_sums: ClassVar[str] = (
        "its server remembers the last update of each client. Use pace-async, whose clients remember, or fedbuff"
    )
    rounds: ClassVar[bool] = False
    own_server: ClassVar[str] = "fedbuff"

    buffer: Annotated[int, AtLeast(1)] = 1
    lr: Annotated[float, Above(0), FINITE] = 0.1
    max_age: Annotated[int, AtLeast(0)] = 0
    wait_for_all: bool = True

    @property
    def server(self) -> ServerRule[Any] | None:
        """The default server rule of this scheme; None = plain averaging."""
        return LastUpdates(self.lr, self.max_age)

    def decide(self, state: None, view: View, rng: np.random.Generator) -> tuple[Move, None]:
        """Step if enough answers are in hand, and start all clients that can start."""
        hand, apply, facts = view.in_hand, None, {}
        filling = self.wait_for_all and view.step == 0
        if len(hand) and (not missing(view) if filling else len(hand) >= self.buffer):
            used = len(hand) if filling else self.buffer
            lag = view.step - hand.step[:used]
            apply = Apply(hand.ids[:used], mean_weights(view, hand.clients[:used]), "delta")
            facts = {"mean lag": float(lag.mean()), "largest lag": int(lag.max())}
        start = view.candidates
        wait = Wait(len(hand) + 1 if apply is None else min(len(hand) - apply.ids.size + 1, self.buffer))
        return Move(start, np.zeros(start.size), apply, wait=wait, mode="delta", why=Diagnostics(facts=facts)), None
