"""Privacy budgets: how much noise a sum gets, and how much of its budget each client has spent.

Protected is a whole client: two runs in which one client contributes something else, or nothing, to the sums that it is
in are hard to tell apart. The sum of step t is sum_i a_i u_i with |u_i| <= clip, and gets Gaussian noise of standard
deviation z clip max_i |a_i|. For client i this is a release with noise multiplier z max_j |a_j| / |a_i|, and costs it
(|a_i| / (z max_j |a_j|))^2 (`fedpace.numerics.accounting`). Clients that take part more often, or with larger weights,
spend more. A client whose budget would not last for another full release is not asked again.

Not protected: who takes part and when, weights, and anything but the sums. Selection is not secret and not uniform, so
nothing is gained from sampling.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping

import numpy as np

from fedpace.core.privacy import TrainingPrivacy
from fedpace.core.sums import Member
from fedpace.numerics.accounting import gaussian_epsilon, gaussian_multiplier

ROUNDING = 1e-9
"""Part of the budget that rounding may add."""


class PrivacyBudget:
    """The budgets of all clients of a run.

    Args:
        privacy: epsilon, delta, clip and releases; epsilon must be above 0.
    """

    def __init__(self, privacy: TrainingPrivacy) -> None:
        self.privacy = privacy
        self.limit = gaussian_multiplier(privacy.epsilon, privacy.delta) ** -2
        """Cost that a client may spend."""
        self.multiplier = math.sqrt(privacy.releases / self.limit)
        """z: noise per sum, in units of clip x the largest weight."""
        self.spent: dict[Hashable, float] = {}
        """Client -> cost of its releases so far."""

    def deviation(self, members: Iterable[Member]) -> float:
        """Return the standard deviation of the noise in the sum of these members."""
        return self.multiplier * self.privacy.clip * max(self._weights(members).values(), default=0.0)

    def affordable(self, client: Hashable) -> bool:
        """Return whether the client can take part in another sum with any weight."""
        return self.spent.get(client, 0.0) + self.multiplier**-2 <= self.limit * (1 + ROUNDING)

    def charge(self, members: Iterable[Member]) -> None:
        """Add the cost of a sum to the budgets of its members."""
        weights = self._weights(members)
        largest = max(weights.values(), default=0.0)
        for client, weight in weights.items():
            cost = (weight / largest / self.multiplier) ** 2 if largest > 0 else 0.0
            self.spent[client] = self.spent.get(client, 0.0) + cost

    @staticmethod
    def _weights(members: Iterable[Member]) -> dict[Hashable, float]:
        """Client -> the sum of the absolute weights of its answers."""
        weights: dict[Hashable, float] = {}
        for member in members:
            weights[member.client] = weights.get(member.client, 0.0) + abs(member.weight)
        return weights

    def epsilon(self, client: Hashable) -> float:
        """Return the epsilon that a client has spent, at the run's delta."""
        return gaussian_epsilon(self.spent.get(client, 0.0), self.privacy.delta)

    def facts(self, clients: Iterable[Hashable]) -> dict[str, float]:
        """Return what a record shows: the largest and the median epsilon spent, and how many clients are out of it."""
        known = list(clients)
        costs = [self.spent.get(client, 0.0) for client in known]
        return {
            "epsilon": gaussian_epsilon(max(costs, default=0.0), self.privacy.delta),
            "median epsilon": gaussian_epsilon(float(np.median(costs)) if costs else 0.0, self.privacy.delta),
            "out of budget": sum(not self.affordable(client) for client in known),
        }

    def load(self, spent: Mapping[Hashable, float]) -> None:
        """Restore the costs that `spent` held."""
        self.spent = dict(spent)
