"""FedProx's variable local work: clients that are too slow for the round train less, and still count.

Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated Optimization in Heterogeneous Networks" (MLSys 2020). FedAvg
drops stragglers. FedProx lets every client train as much as it can, and averages what comes ("gamma-inexact" local
solutions); a proximal term keeps partial and full solutions close (`algorithm = "fedprox"`).

- `straggling = "clock"`: a round is planned for a quantile of the fleet's delays, T. Clients that need longer train the
  part that fits, (T - rest_i) / compute_i, at least `least`; the others train as usual. This is the paper's motivation:
  the work follows from a clock cycle of the system.
- `straggling = "random"`: the paper's experiments. A fraction `stragglers` of each cohort, drawn at random, trains a
  uniformly drawn part between `least` and 1.

Departure: answers are weighted by the clients' shares, scaled to sum to 1. The paper draws clients in proportion to
their samples and averages them evenly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.options import AtLeast, Between
from fedpace.core.rounds import cohort_size
from fedpace.core.types import Cohort, Diagnostics, Need, Stateless, View
from fedpace.selectors._drawing import delay_quantile, fitting_work, share_weights


@dataclass(frozen=True)
class Fedprox(Stateless):
    """Random clients; stragglers train less.

    Args:
        k: clients drawn per round.
        straggling: whether the `clock` decides which clients train less, or a `random` draw.
        quantile: for `clock`: the round is planned for this quantile of the delays of reachable clients.
        stragglers: for `random`: fraction of the cohort that trains less; the paper has 0.5 and 0.9.
        least: smallest work of a straggler, as a part of the configured local training.
    """

    name: ClassVar[str] = "fedprox"
    sets_work: ClassVar[bool] = True
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY})

    k: Annotated[int, AtLeast(1)] = 10
    straggling: Literal["clock", "random"] = "clock"
    quantile: Annotated[float, Between(0, 1)] = 0.5
    stragglers: Annotated[float, Between(0, 1)] = 0.5
    least: Annotated[float, Between(0, 1, "(]")] = 0.05

    def select(self, state: None, view: View, rng: np.random.Generator) -> tuple[Cohort, None]:
        """Draw the clients, and let stragglers train less."""
        size = cohort_size(self.k, view, self.name)
        rows = np.sort(rng.choice(view.candidates, size=size, replace=False))
        work = self._by_clock(view, rows) if self.straggling == "clock" else self._at_random(size, rng)
        why = Diagnostics(facts={"stragglers": int((work < 1).sum()), "mean work": float(work.mean())})
        return Cohort(rows, share_weights(view, rows), why=why, work=work), None

    def _by_clock(self, view: View, rows: IntArray) -> FloatArray:
        return np.clip(fitting_work(view, rows, delay_quantile(view, self.quantile)), self.least, 1.0)

    def _at_random(self, size: int, rng: np.random.Generator) -> FloatArray:
        work = np.ones(size)
        slow = rng.choice(size, size=round(self.stragglers * size), replace=False)
        work[slow] = rng.uniform(self.least, 1.0, slow.size)
        return work
