"""FedCS: draws random candidates and keeps all that can meet the deadline.

Nishio and Yonetani, "Client Selection for Federated Learning with Heterogeneous Resources in Mobile Edge" (ICC 2019):
ask ceil(m C) random clients for their resources, and take as many as fit into a round of T_round seconds.

The paper knows training and upload times separately, and uploads queue on one channel, which requires a greedy search.
A View has one delay per client, and a round lasts as long as its slowest client. The largest admissible set is then
exactly "all candidates with a delay of at most the deadline". If no candidate can meet the deadline, the fastest one is
taken without a deadline, because a cohort cannot be empty.

Where we depart: `quantile`, ours, sets the deadline relative to the delays of the fleet. The paper's 3 minutes suit its
own network. If all delays are shorter, the scheme becomes random selection; if all are longer, it selects one client.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fedpace._base.options import Above, AtLeast, Between
from fedpace.core.rounds import cohort_size
from fedpace.core.types import Cohort, Diagnostics, Need, Stateless, View
from fedpace.selectors._drawing import share_weights, slowest


@dataclass(frozen=True)
class FedCs(Stateless):
    """The candidates that are fast enough.

    Args:
        k: candidates drawn, and so the largest cohort.
        deadline: largest estimated delay of a selected client, in seconds.
        quantile: use this quantile of the reachable clients' estimated delays as the deadline; 0 = use `deadline`.
        enforce: also end the round at the deadline; clients that are late then count as failed.
    """

    name: ClassVar[str] = "fed-cs"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY})

    k: Annotated[int, AtLeast(1)] = 10
    deadline: Annotated[float, Above(0)] = 180.0
    enforce: bool = False
    quantile: Annotated[float, Between(0, 1)] = 0.0

    def select(self, state: None, view: View, rng: np.random.Generator) -> tuple[Cohort, None]:
        """Draw the candidates and keep those that can meet the deadline."""
        size = cohort_size(self.k, view, self.name)
        candidates = np.sort(rng.choice(view.candidates, size=size, replace=False))
        limit = self._limit(view)
        clients = candidates[view.delay[candidates] <= limit]
        in_time = int(clients.size)
        status = "ok"
        if not in_time:
            clients = candidates[[np.argmin(view.delay[candidates])]]
            status = f"nobody can make the deadline of {limit:g} s: the fastest candidate is taken"
        why = Diagnostics(
            objective=float(in_time),
            predicted_seconds=slowest(view, clients),
            status=status,
            facts={"candidates": size, "in_time": in_time, "limit": limit},
        )
        deadline = limit if self.enforce and in_time else math.inf
        return Cohort(clients, share_weights(view, clients), deadline=deadline, why=why), None

    def _limit(self, view: View) -> float:
        """Return the deadline in seconds."""
        if not self.quantile:
            return self.deadline
        # inverted_cdf returns an actual client's delay, so that rounding does not decide which clients are in.
        return float(np.quantile(view.delay[view.candidates], self.quantile, method="inverted_cdf"))
