"""m-synchronous SGD: every client trains on the current model, and the first m answers make the step.

Begunov and Tyurin, "Do We Need Asynchronous SGD? On the Near-Optimality of Synchronous Methods" (2026). All workers
start from the same model. The server waits for the first m answers, averages them, and drops the others, which start
again from the new model. The paper shows that this is nearly optimal for data that are the same on all workers; with
different data it is biased toward the fast clients.

Departure: answers are weighted by the clients' shares, scaled to sum to 1, where the paper has 1/m. With m = all
clients, the method is exactly FedAvg with full participation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from fedpace._base.options import FINITE, Above, AtLeast
from fedpace.core.rounds import cohort_size
from fedpace.core.server_rule import ServerRule
from fedpace.core.types import Cohort, Stateless, View
from fedpace.selectors._drawing import share_weights
from fedpace.server.fedavgm import Fedavgm


@dataclass(frozen=True)
class MSync(Stateless):
    """The first m answers of all clients.

    Args:
        m: number of answers per step; 0 = all.
        lr: the server's step size.
    """

    name: ClassVar[str] = "m-sync"

    m: Annotated[int, AtLeast(0)] = 10
    lr: Annotated[float, Above(0), FINITE] = 1.0

    @property
    def server(self) -> ServerRule[Any] | None:
        """The default server rule of this scheme; None = plain averaging."""
        return None if self.lr == 1 else Fedavgm(0.0, self.lr)

    def select(self, state: None, view: View, rng: np.random.Generator) -> tuple[Cohort, None]:
        """Return all available clients, and end the round after m answers."""
        rows = view.candidates
        size = cohort_size(self.m, view, self.name) if self.m else rows.size
        return Cohort(rows, share_weights(view, rows), quorum=size if size < rows.size else 0), None
