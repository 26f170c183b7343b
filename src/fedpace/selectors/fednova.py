"""FedNova: random clients that train for about the same time, and updates normalised by their local steps.

Wang, Liu, Liang, Joshi and Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization"
(NeurIPS 2020). Clients make different numbers of local steps, because they differ in speed. Without a correction, the
average of their updates leads to the optimum of another objective, in which clients that make more steps count more.
The server rule `fednova` divides updates by their local steps (`fedpace.server.fednova`).

The paper takes the numbers of local steps as given. Ours: the round is planned for a quantile of the fleet's delays, T,
and client i trains as much as fits,

    work_i = (T - rest_i) / compute_i,        between `least` and `most`,

with compute_i the seconds of the configured local training, and rest_i what does not grow with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from fedpace._base.options import FINITE, AtLeast, Between
from fedpace.core.rounds import cohort_size
from fedpace.core.server_rule import ServerRule
from fedpace.core.types import Cohort, Diagnostics, Need, Stateless, View
from fedpace.selectors._drawing import delay_quantile, fitting_work, share_weights
from fedpace.server.fednova import Fednova as NormalisedAverage


@dataclass(frozen=True)
class Fednova(Stateless):
    """Work by speed, and normalised averaging.

    Args:
        k: clients drawn per round.
        quantile: the round is planned for this quantile of the delays of reachable clients.
        least: smallest work of a client, as a multiple of the configured local training.
        most: largest work of a client.
    """

    name: ClassVar[str] = "fednova"
    sets_work: ClassVar[bool] = True
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY})
    not_with: ClassVar[dict[str, str]] = {
        "scaffold": "SCAFFOLD corrects client drift in its own way, and FedNova is defined without it: use `timelyfl`"
    }

    k: Annotated[int, AtLeast(1)] = 10
    quantile: Annotated[float, Between(0, 1)] = 0.5
    least: Annotated[float, Between(0, 1, "(]")] = 0.1
    most: Annotated[float, AtLeast(1), FINITE] = 4.0

    @property
    def server(self) -> ServerRule[Any] | None:
        """The default server rule of this scheme; None = plain averaging."""
        return NormalisedAverage()

    def select(self, state: None, view: View, rng: np.random.Generator) -> tuple[Cohort, None]:
        """Draw the clients, and let each train as long as fits into the round."""
        size = cohort_size(self.k, view, self.name)
        rows = np.sort(rng.choice(view.candidates, size=size, replace=False))
        planned = delay_quantile(view, self.quantile)
        work = np.clip(fitting_work(view, rows, planned), self.least, self.most)
        why = Diagnostics(
            predicted_seconds=float(view.seconds_with(_spread(view, rows, work))[rows].max()),
            facts={"planned seconds": planned, "mean work": float(work.mean())},
        )
        return Cohort(rows, share_weights(view, rows), why=why, work=work), None


def _spread(view: View, rows: Any, work: Any) -> Any:
    """(n,) the work of the chosen rows; 1 elsewhere."""
    every = np.ones(view.clients)
    every[rows] = work
    return every
