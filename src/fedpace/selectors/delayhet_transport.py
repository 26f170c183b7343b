"""DelayHet-transport: the seed paper's sampling scheme with a bound that does not end in a single client.

Ours. The exact minimiser of the paper's objective is one client for every K (docs/errata.md, A4), since its bound
charges the same bias to every mixture of clients. Two repairs: the bias of drawing from p in place of the population w
is at most what it costs to carry p to w with ground cost B, and the variance has an exact factor of 1/2:

    B_p = 2 (OT_B(p, w)^2 + p'B~p / (2K)),     B~ the squares of B

so that p = w has no bias at all. Minimised over the simplex: E[max delay of K draws] / (1 - B_p). The plan that carries
p to w is optimised together with p (`fedpace.numerics.ratio.TransportRatio`).

B is a worst case over directions and exceeds 1 many times on real data (A9), so it is scaled here as in the paper's
schemes. Below c = 1/sqrt(2) a single client is admissible again, and under long tails it is the minimiser: the default
is 1, at which the mean distance to the remotest client counts as a complete miss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedpace._base.checks import FloatArray, at_least, finite
from fedpace.core.cohorts import cohort_size
from fedpace.core.protocols import RIDGE
from fedpace.core.types import Cohort, Need, Stateless, View
from fedpace.numerics.ratio import TransportRatio, minimise_on_simplices, prefix_starts
from fedpace.selectors._feature_heterogeneity import feature_heterogeneity
from fedpace.selectors._optimised import cohort_from, remember_last


@dataclass(frozen=True)
class DelayhetTransport(Stateless):
    """Draws that stand for the population at little cost.

    Args:
        k: draws in a round; a client drawn twice trains once and weighs double.
        ridge: added to the mean moment A before it is inverted, in units of its mean eigenvalue.
        target_heterogeneity: c. B is scaled down until max_i sum_j w_j B_ij <= c; 0 = B as it is.
    """

    name: ClassVar[str] = "delayhet-transport"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY, Need.MOMENT})

    k: int = 10
    ridge: float = RIDGE
    target_heterogeneity: float = 1.0

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        at_least(self.k, 1, f"k of {self.name}")
        for option in ("ridge", "target_heterogeneity"):
            at_least(getattr(self, option), 0, f"{option} of {self.name}")
            finite(getattr(self, option), f"{option} of {self.name}")

    def select(self, state: None, view: View, rng: np.random.Generator) -> tuple[Cohort, None]:
        """Optimise the distribution and its plan, then draw."""
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
    """Return the best distribution, its B_p, and what it costs to carry it to the population."""
    squares = np.square(cost[:, candidates > 0])
    # Delays in units of their mean: the solver's tolerances then do not depend on the unit of time.
    ratio = TransportRatio(cost, squares, share, delay / max(delay.mean(), 1e-12), k)
    # At the start everybody is stood for by those near it, the nearer the more.
    near = np.exp(-cost / max(cost.mean(), 1e-12))
    starts = [near * mask[:, None] / (near * mask[:, None]).sum(axis=0) for mask in prefix_starts(delay)]
    plan, _ = minimise_on_simplices(ratio.value_and_gradient, starts)
    p, carried = ratio.drawn(plan), ratio.carried(plan)
    p = p / p.sum()
    return p, ratio.bound(p, carried), carried
