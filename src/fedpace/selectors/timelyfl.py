"""TimelyFL: the round lasts as long as the k-th fastest client needs, and every client trains what fits.

Zhang, Gao, Lee, Zhang and Avestimehr, "TimelyFL: Heterogeneity-aware Asynchronous Federated Learning with Adaptive
Partial Training" (CVPR workshops 2023). The server draws clients and knows their times for one unit of local training,
t_i = compute_i + rest_i. The aggregation interval T is the k-th smallest t_i. Fast clients train several units,

    E_i = floor((T - rest_i) / compute_i),        at least 1,

and clients with t_i > T train a part, so that they answer in time as well. The server averages what has come by T.

Departures. (a) In the paper, a slow client trains some layers of the model only, and sends those: a part alpha_i =
T / t_i of computation and of transfer. Here it trains all layers for fewer local steps, (T - rest_i) / compute_i, and
the transfer takes as long as ever; a client whose transfer alone takes longer than T is left out. (b) The paper
measures clients just before each round. Here delays vary from round to round, so the server waits `slack` times T.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fedpace._base.options import FINITE, AtLeast, Between
from fedpace.core.rounds import check_k
from fedpace.core.types import Cohort, Diagnostics, Need, Stateless, View
from fedpace.selectors._drawing import fitting_work, share_weights


@dataclass(frozen=True)
class Timelyfl(Stateless):
    """Each client's work is fitted to a deadline.

    Args:
        k: the interval is the k-th smallest time of the clients drawn.
        concurrency: clients drawn per round; 0 = all that can be reached.
        most: largest work of a fast client, in multiples of the configured local training.
        least: clients that could train only a smaller part are left out.
        slack: the round ends after this many intervals, without the clients that are late.
    """

    name: ClassVar[str] = "timelyfl"
    sets_work: ClassVar[bool] = True
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY})

    k: Annotated[int, AtLeast(1)] = 10
    concurrency: Annotated[int, AtLeast(0)] = 20
    most: Annotated[int, AtLeast(1)] = 4
    least: Annotated[float, Between(0, 1, "(]")] = 0.05
    slack: Annotated[float, AtLeast(1), FINITE] = 1.2

    def select(self, state: None, view: View, rng: np.random.Generator) -> tuple[Cohort, None]:
        """Draw the clients, set the interval, and give each the work that fits."""
        check_k(self.k, view.clients, self.name)
        rows = view.candidates
        if self.concurrency:
            size = min(rows.size, max(self.k, self.concurrency))
            rows = np.sort(rng.choice(rows, size=size, replace=False))
        times = np.sort(view.delay[rows])
        interval = float(times[min(self.k, rows.size) - 1])
        fits = fitting_work(view, rows, interval)
        fits[view.delay[rows] <= interval] = np.maximum(fits[view.delay[rows] <= interval], 1.0)  # despite rounding
        joins = fits >= self.least
        rows, fits = rows[joins], fits[joins]
        work = np.where(fits >= 1, np.clip(np.floor(fits + 1e-9), 1, self.most), fits)
        why = Diagnostics(
            predicted_seconds=interval,
            facts={"interval": interval, "partial": int((work < 1).sum()), "mean work": float(work.mean())},
        )
        deadline = self.slack * interval if interval > 0 else np.inf
        return Cohort(rows, share_weights(view, rows), deadline=deadline, why=why, work=work), None
