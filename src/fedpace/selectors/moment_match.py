"""Moment matching: selects the fastest clients whose weighted mixture matches the population.

Ours; repairs the set objective of the DelayHet paper (docs/theory.md). For squared loss, a client's gradient at any
model is linear in its second moment of features and targets. Weights that match the population's moment therefore give
the population's gradient at every model. The error in a typical direction is rho = |sum_i a_i M_i|_F^2 / D with
whitened deviations M_i. For each prefix of the clients sorted by delay, the scheme finds the weights with the smallest
rho (a convex problem on the simplex). It then selects the prefix with the smallest max delay / (1 - rho). The scan is
exact up to 200 clients; beyond, prefix lengths grow in steps of 2 %.

The scheme needs no constant to rescale B, and training converges to the population's optimum. It does not know the
ratio between distances of moments and of updates, which depends on the model and changes during training. `pace`
measures it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fedpace._base.options import FINITE, AtLeast
from fedpace.core.types import Cohort, Diagnostics, Need, Stateless, View
from fedpace.moments.store import RIDGE
from fedpace.selectors._matching import match_population, population_points, reasons


@dataclass(frozen=True)
class MomentMatch(Stateless):
    """Fast clients whose mixture matches the population.

    Args:
        ridge: added to the mean moment before it is inverted, in units of its mean eigenvalue.
        max_clients: largest number of clients in a cohort; 0 = no limit.
    """

    name: ClassVar[str] = "moment-match"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY, Need.MOMENT})
    not_with: ClassVar[Mapping[str, str]] = {
        "scaffold": "it asks the same clients in every round, so that the control variates of the others are never "
        "renewed. Use algorithm = 'fedavg', or use random"
    }
    uses: ClassVar[frozenset[Need]] = frozenset({Need.TARGETS})
    """If moments lack targets, the cohort matches the curvature of the population, but not its optimum."""
    first_moments: ClassVar[bool] = True
    """Moments of different clients are compared, so each client reports its moment once, with its first model."""

    ridge: Annotated[float, AtLeast(0), FINITE] = RIDGE
    max_clients: Annotated[int, AtLeast(0)] = 0

    def select(self, state: None, view: View, rng: np.random.Generator) -> tuple[Cohort, None]:
        """Scan the prefixes, and return the best one as a cohort."""
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
