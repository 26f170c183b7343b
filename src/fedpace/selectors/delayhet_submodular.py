"""DelayHetSubmodular: selects the weighted set of clients that minimises the predicted time to the target.

Harshvardhan, Yu, Rosing and Mazumdar, "Client Selection in Federated Learning with Data Heterogeneity and Network
Latencies", Algorithm 2: minimise g(S) = max_{i in S} tau_i / (1 - B_S), with B_S = 2 (sum_j w_j min_{i in S} B_ij)^2.
Every client is represented by its nearest member of S, and a member's weight is the total share of the clients that it
represents.

Where we depart from the paper, and why (docs/errata.md has the numbers):
- g is not submodular (A1), but some prefix of the clients sorted by delay minimises it (A2). `solver="exact"` scans the
  prefixes. `solver="min-norm"` is the paper's Fujishige-Wolfe algorithm, which has no guarantee here and is often far
  from the minimum (A3).
- B_S > 1 makes g negative, so that the minimisation would prefer such sets (A8). Here, sets with B_S >= 1 are
  infeasible.
- B must be rescaled for the theory to apply, which the paper does not describe (A9): see `target_heterogeneity`.
- The client's share replaces 1/m (C11), and only clients with a known moment count.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np

from fedpace._base.checks import BoolArray, FloatArray, IntArray
from fedpace._base.errors import InfeasibleError, InputError
from fedpace._base.options import AtLeast
from fedpace.core.types import Cohort, Diagnostics, Need, Stateless, View
from fedpace.moments.bank import RescaledPrefix
from fedpace.moments.store import RIDGE
from fedpace.numerics.min_norm import min_norm_minimiser
from fedpace.numerics.prefix import solution_of_set
from fedpace.selectors._feature_heterogeneity import Ridge, TargetHeterogeneity, feature_heterogeneity

LEAST_MARGIN = 1e-6
"""Lower bound of 1 - B_S in min-norm, which needs a finite value for every set."""


@dataclass(frozen=True)
class DelayhetSubmodular(Stateless):
    """The fastest clients that represent the rest well.

    Args:
        solver: `exact` (prefix scan) or `min-norm` (as in the paper, with g(empty) = the largest value of a single
            client).
        ridge: added to the mean moment A before it is inverted, in units of its mean eigenvalue.
        target_heterogeneity: c, below 0.7071. B is scaled down until max_i sum_j w_j B_ij <= c, as the paper's
            Assumption 3 requires; in the paper this is a hidden parameter. Small sets then look better than they are. 0
            = not scaled, with infeasible sets excluded, as the theorem assumes: this is cautious, but training does not
            stall.
        max_clients: the longest prefix that the exact solver considers; 0 = no limit.
        max_iter: major steps of min-norm, which need not converge on a function that is not submodular.
    """

    name: ClassVar[str] = "delayhet-submodular"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY, Need.MOMENT})

    solver: Literal["exact", "min-norm"] = "exact"
    ridge: Ridge = RIDGE
    target_heterogeneity: TargetHeterogeneity = 0.0
    max_clients: Annotated[int, AtLeast(0)] = 0
    max_iter: Annotated[int, AtLeast(1)] = 300

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid, or if two do not go together."""
        super().__post_init__()
        if self.max_clients and self.solver == "min-norm":
            raise InputError("min-norm cannot bound the number of clients: set max_clients = 0 or use solver='exact'")

    def select(self, state: None, view: View, rng: np.random.Generator) -> tuple[Cohort, None]:
        """Minimise g over the available clients, and return the minimiser as a cohort."""
        if view.moments is None:
            raise InputError(f"{self.name} needs feature moments, but no client has reported any")
        choice: RescaledPrefix
        if self.solver == "exact":
            status = "exact"
            choice = view.moments.best_prefix(
                view.delay,
                ridge=self.ridge,
                shares=view.share,
                candidates=view.available,
                target=self.target_heterogeneity,
                max_clients=self.max_clients or None,
            )
        else:
            choice, status = self._min_norm(view)
        why = Diagnostics(
            objective=choice.objective,
            predicted_seconds=choice.delay,
            status=status,
            facts={
                "B_S": choice.bound,
                "h": choice.heterogeneity,
                "c": self.target_heterogeneity,
                "scale": choice.scale,
                "largest_mean_B": choice.largest_mean,
            },
            reasons={
                int(row): f"stands for {weight:.1%} of the objective"
                for row, weight in zip(choice.clients, choice.weights, strict=True)
            },
        )
        return Cohort(choice.clients, choice.weights, why=why), None

    def _min_norm(self, view: View) -> tuple[RescaledPrefix, str]:
        problem = feature_heterogeneity(view, ridge=self.ridge, target=self.target_heterogeneity, scheme=self.name)
        rows = np.flatnonzero(problem.candidates)
        # If g is not submodular, the result depends on the first vertex. Start from one that does not depend on row
        # order.
        rows = rows[np.lexsort((problem.matrix[rows] @ problem.share, problem.delay[rows]))]
        block, delay = problem.matrix[rows], problem.delay[rows]

        def chain(order: IntArray) -> FloatArray:
            """Return g of every prefix of `order`, by running maxima and minima."""
            nearest = np.minimum.accumulate(block[order], axis=0)
            return _cost(np.maximum.accumulate(delay[order]), nearest @ problem.share)

        def g(members: BoolArray) -> float:
            if not members.any():
                return largest_singleton
            return float(_cost(delay[members].max(), block[members].min(axis=0) @ problem.share))

        largest_singleton = float(_cost(delay, block @ problem.share).max())
        found = min_norm_minimiser(g, rows.size, chain=chain, max_iter=self.max_iter, allow_empty=False)
        solution = solution_of_set(block, delay, problem.share, found.members)
        if solution.bound >= 1:
            raise InfeasibleError(
                f"min-norm returned a set with B_S = {solution.bound:.4g}, but only sets below 1 are feasible: set "
                "target_heterogeneity, or use solver='exact'"
            )
        status = f"min-norm {'converged' if found.converged else 'stopped'} after {found.iterations} steps"
        solution = replace(solution, clients=rows[solution.clients])
        choice = RescaledPrefix.of(solution, problem.rows, largest_mean=problem.largest_mean, scale=problem.scale)
        return choice, f"{status}, duality gap {found.gap:.3g}"


def _cost(delay: FloatArray | float, h: FloatArray | float) -> FloatArray:
    return np.asarray(delay / np.maximum(1.0 - 2.0 * np.square(h), LEAST_MARGIN))
