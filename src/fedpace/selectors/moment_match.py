"""Moment matching: the fastest clients, weighted so that together they look like the population.

Ours, the repair of the seed paper's set objective (docs/theory.md). For squared loss a client's gradient at any model
is linear in its second moment of features and targets, so that weights which match the population's moment give its
gradient, at every model. The error in a typical direction is rho = |sum_i a_i M_i|_F^2 / D with whitened deviations
M_i. Each prefix of the delay order gets the weights that make rho least (a convex problem on the simplex), and the
prefix with the least max delay / (1 - rho) is chosen: exactly up to 200 clients, beyond which prefixes are tried in
steps of 2 % of their length.

Without a constant to rescale B, and with an optimum that converges where the population's does. What it lacks is the
scale between moments and updates, which differs from model to model and as training goes on: `pace` measures it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedpace._base.checks import at_least, finite
from fedpace.core.protocols import RIDGE
from fedpace.core.types import Cohort, Diagnostics, Need, Stateless, View
from fedpace.selectors._matching import match_population, population_points, reasons


@dataclass(frozen=True)
class MomentMatch(Stateless):
    """The fastest clients whose mixture matches everybody.

    Args:
        ridge: added to the mean moment before it is inverted, in units of its mean eigenvalue.
        max_clients: most clients in a cohort; 0 = no limit.
    """

    name: ClassVar[str] = "moment-match"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY, Need.MOMENT})
    uses: ClassVar[frozenset[Need]] = frozenset({Need.TARGETS})
    """If moments lack targets, the cohort matches the curvature of the population, but not its optimum."""
    first_moments: ClassVar[bool] = True
    """Moments of different clients are compared, so each client reports its moment once, with its first model."""

    ridge: float = RIDGE
    max_clients: int = 0

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        at_least(self.ridge, 0, f"ridge of {self.name}")
        finite(self.ridge, f"ridge of {self.name}")
        at_least(self.max_clients, 0, f"max_clients of {self.name}")

    def select(self, state: None, view: View, rng: np.random.Generator) -> tuple[Cohort, None]:
        """Scan the prefixes."""
        points = population_points(view, ridge=self.ridge, scheme=self.name)
        match = match_population(view, points, max_clients=self.max_clients)
        why = Diagnostics(
            objective=match.chosen.predicted if match.feasible else None,
            predicted_seconds=match.chosen.seconds,
            status="ok" if match.feasible else "no set of clients matches the population: the closest was taken",
            facts={"rho": match.chosen.error, "prefix": match.chosen.prefix, "frontier": match.table()},
            reasons=reasons(view, match),
        )
        return Cohort(match.clients, match.weights, why=why), None
