"""DelayHet-transport: DelayHetSampling with a tighter bound, whose minimiser is not a single client.

Ours. The exact minimiser of the paper's objective is one client for every K (docs/errata.md, A4), because the paper's
bound charges the same bias to every mixture of clients. This scheme repairs the bound in two places. The bias of
drawing from p instead of the population w is at most the optimal transport cost from p to w with ground cost B. The
variance gets its exact factor of 1/2:

    B_p = 2 (OT_B(p, w)^2 + p'B~p / (2K)),     B~ the elementwise squares of B

so that p = w has no bias. The scheme minimises E[max delay of K draws] / (1 - B_p) over the simplex, together with the
transport plan from p to w (`fedpace.numerics.round_time.TransportRatio`).

B is a worst case over directions and often far exceeds 1 on real data (A9), so it is scaled as in the paper's schemes.
Below c = 1/sqrt(2) a single client is admissible again, and with long-tailed delays it is the minimiser. The default is
c = 1: a cohort at the mean distance of the remotest client then makes no progress.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace._base.options import FINITE, AtLeast
from fedpace.core.rounds import cohort_size
from fedpace.core.types import Cohort, Need, Stateless, View
from fedpace.moments.store import RIDGE
from fedpace.numerics.round_time import TransportRatio, minimise_on_simplices, prefix_starts
from fedpace.selectors._feature_heterogeneity import feature_heterogeneity
from fedpace.selectors._optimised import cohort_from, remember_last


@dataclass(frozen=True)
class DelayhetTransport(Stateless):
    """Draws that represent all clients with little waiting.

    Args:
        k: draws per round; a client drawn twice trains once with double weight.
        ridge: added to the mean moment A before it is inverted, in units of its mean eigenvalue.
        target_heterogeneity: c. B is scaled down until max_i sum_j w_j B_ij <= c; 0 = not scaled.
    """

    name: ClassVar[str] = "delayhet-transport"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY, Need.MOMENT})

    k: Annotated[int, AtLeast(1)] = 10
    ridge: Annotated[float, AtLeast(0), FINITE] = RIDGE
    target_heterogeneity: Annotated[float, AtLeast(0), FINITE] = 1.0

    def select(self, state: None, view: View, rng: np.random.Generator) -> tuple[Cohort, None]:
        """Optimise the distribution and its transport plan, then draw."""
        cohort_size(self.k, view, self.name)  # raises if k exceeds the fleet; draws with replacement need no cap
        problem = feature_heterogeneity(view, ridge=self.ridge, target=0.0, scheme=self.name)
        scale = 1.0
        if 0 < self.target_heterogeneity < problem.largest_mean:
            scale = self.target_heterogeneity / problem.largest_mean
        candidates = problem.candidates
        rows, delay = problem.rows[candidates], problem.delay[candidates]
        p, bound, carried = _best(
            scale * problem.matrix[candidates], candidates.astype(np.float64), problem.share, delay, self.k
        )
        facts = {
            "transport": carried,
            "c": self.target_heterogeneity,
            "scale": scale,
            "largest_mean_B": problem.largest_mean,
        }
        return cohort_from(rows, p, problem.share[candidates], delay, self.k, bound, facts, rng), None


@remember_last
def _best(
    cost: FloatArray, candidates: FloatArray, share: FloatArray, delay: FloatArray, k: int
) -> tuple[FloatArray, float, float]:
    """Return the best distribution, its B_p, and its transport cost to the population."""
    squares = np.square(cost[:, candidates > 0])
    # Delays are divided by their mean, so that the solver's tolerances do not depend on the time unit.
    ratio = TransportRatio(cost, squares, share, delay / max(delay.mean(), 1e-12), k)
    # At the start, every client is represented by clients near it, with weights that fall with distance.
    near = np.exp(-cost / max(cost.mean(), 1e-12))
    starts = [near * mask[:, None] / (near * mask[:, None]).sum(axis=0) for mask in prefix_starts(delay)]
    plan, _ = minimise_on_simplices(ratio.value_and_gradient, starts)
    p, carried = ratio.drawn(plan), ratio.carried(plan)
    p = p / p.sum()
    return p, ratio.bound(p, carried), carried
