"""DelayHetSampling: draws clients from the distribution that minimises the predicted time to the target.

Harshvardhan, Yu, Rosing and Mazumdar, "Client Selection in Federated Learning with Data Heterogeneity and Network
Latencies", Algorithm 3: minimise g(p) = E[max delay of K draws] / (1 - B_p), with B_p = 2 (p'B~w + p'B~p / K) and B~
the elementwise squares of B. Then draw K clients with replacement, each draw with weight 1/K.

Where we depart from the paper, and why (docs/errata.md has the numbers):
- The exact minimiser of g is a single client for every K (A4). The paper ran SciPy's trust-constr from the uniform
  distribution and stopped it early, so the number of iterations is a hidden parameter. Here it is the option
  `max_iter`.
- The numerator in Algorithm 3 is misprinted and identically 0 (A5). Lemma 3 has the correct one.
- B_p < 1 does not follow from the paper's assumptions (A6). Near B_p = 1 the objective continues linearly, steep but
  finite, so that the solver can leave an infeasible start.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace._base.options import AtLeast
from fedpace.core.rounds import cohort_size, draw_multiset
from fedpace.core.types import Cohort, Diagnostics, Need, Stateless, View
from fedpace.moments.store import RIDGE
from fedpace.numerics.round_time import expected_max, steep_inverse
from fedpace.selectors._feature_heterogeneity import (
    FeatureHeterogeneity,
    Ridge,
    TargetHeterogeneity,
    feature_heterogeneity,
)


@dataclass(frozen=True)
class DelayhetSampling(Stateless):
    """Clients drawn from an optimised distribution.

    Args:
        k: draws per round; a client drawn twice trains once with double weight.
        max_iter: iterations of trust-constr from the uniform distribution. More is not better: the limit is a single
            client.
        full_objective: optimise with the true K. The paper's approximation sets K = 1 in the objective.
        ridge: added to the mean moment A before it is inverted, in units of its mean eigenvalue.
        target_heterogeneity: c, below 0.7071. B is scaled down until max_i sum_j w_j B_ij <= c; 0 = not scaled. The
            scheme is undefined if B_p >= 1. With K = 1 and all B equal, the uniform start has B_p = 4 c^2, hence a
            default below 1/2.
    """

    name: ClassVar[str] = "delayhet-sampling"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY, Need.MOMENT})

    k: Annotated[int, AtLeast(1)] = 10
    max_iter: Annotated[int, AtLeast(1)] = 20
    full_objective: bool = False
    ridge: Ridge = RIDGE
    target_heterogeneity: TargetHeterogeneity = 0.4

    def select(self, state: None, view: View, rng: np.random.Generator) -> tuple[Cohort, None]:
        """Optimise the distribution, then draw from it."""
        cohort_size(self.k, view, self.name)  # raises if k exceeds the fleet; draws with replacement need no cap
        problem = feature_heterogeneity(view, ridge=self.ridge, target=self.target_heterogeneity, scheme=self.name)
        draws = self.k if self.full_objective else 1
        objective = SamplingObjective.of(problem, draws)
        p, iterations = objective.minimise(self.max_iter)
        bound = objective.bound(p)
        rows = problem.rows[problem.candidates]
        clients, weights = draw_multiset(rows, p, self.k, rng)
        seconds = expected_max(p, objective.delay, self.k).value
        status = f"trust-constr stopped after {iterations} of {self.max_iter} iterations"
        why = Diagnostics(
            objective=objective.value(p),
            predicted_seconds=seconds,
            status=status if bound < 1 else f"{status}; infeasible, B_p >= 1: lower target_heterogeneity",
            facts={
                "B_p": bound,
                "c": self.target_heterogeneity,
                "scale": problem.scale,
                "largest_mean_B": problem.largest_mean,
                "max_iter": self.max_iter,
                "effective_clients": float(1 / np.square(p).sum()),
            },
            reasons={
                int(row): f"drawn {round(weight * self.k)} of {self.k} times"
                for row, weight in zip(clients, weights, strict=True)
            },
        )
        return Cohort(clients, weights, why=why), None


@dataclass(frozen=True, eq=False)
class SamplingObjective:
    """g(p) = E[max delay of K draws] / (1 - B_p), and its gradient."""

    squares: FloatArray
    """B~ between candidates."""
    reach: FloatArray
    """r_i = sum_j w_j B~_ij over all clients with known moments."""
    delay: FloatArray
    draws: int

    @classmethod
    def of(cls, problem: FeatureHeterogeneity, draws: int) -> SamplingObjective:
        """Return the objective restricted to the candidates."""
        squares = np.square(problem.matrix[problem.candidates])
        return cls(
            squares=squares[:, problem.candidates],
            reach=squares @ problem.share,
            delay=problem.delay[problem.candidates],
            draws=draws,
        )

    def bound(self, p: FloatArray) -> float:
        """Return B_p."""
        return float(2 * (p @ self.reach + p @ self.squares @ p / self.draws))

    def value(self, p: FloatArray) -> float:
        """Return g(p)."""
        return self.value_and_gradient(p)[0]

    def value_and_gradient(self, p: FloatArray) -> tuple[float, FloatArray]:
        """Return g(p) and its gradient along the simplex."""
        p = _on_simplex(p)
        numerator = expected_max(p, self.delay, self.draws)
        bound = self.bound(p)
        bound_gradient = 2 * (self.reach + 2 * (self.squares @ p) / self.draws)
        inverse, slope = steep_inverse(bound)
        gradient = numerator.gradient * inverse + numerator.value * slope * bound_gradient
        return numerator.value * inverse, gradient

    def minimise(self, max_iter: int) -> tuple[FloatArray, int]:
        """Return where trust-constr gets from the uniform start in at most `max_iter` iterations, and their number."""
        from scipy.optimize import Bounds, LinearConstraint, minimize

        count = self.delay.size
        start = np.full(count, 1 / count)
        if count == 1:
            return start, 0
        # Delays are divided by their mean, so that the solver's steps and tolerances do not depend on the time unit.
        scaled = SamplingObjective(self.squares, self.reach, self.delay / max(self.delay.mean(), 1e-12), self.draws)
        with warnings.catch_warnings():
            # trust-constr warns if it stops early or if the objective looks linear; both are expected here.
            warnings.simplefilter("ignore", UserWarning)
            result = minimize(
                scaled.value_and_gradient,
                start,
                jac=True,
                method="trust-constr",
                bounds=Bounds(0, 1),
                constraints=LinearConstraint(np.ones((1, count)), 1, 1),
                options={"maxiter": max_iter},
            )
        return _on_simplex(result.x), int(result.nit)


def _on_simplex(p: FloatArray) -> FloatArray:
    """Return p clipped and scaled to sum to 1: interior-point iterates leave the simplex by rounding errors."""
    clipped = np.clip(p, 0.0, None)
    return np.asarray(clipped / clipped.sum())
