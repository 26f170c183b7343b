"""Privacy budgets: how much noise a sum gets, and how much of its budget each client has spent.

Protected is a whole client: two runs in which one client contributes something else, or nothing, to the sums that it is
in are hard to tell apart. The sum of step t is sum_i a_i u_i with |u_i| <= clip. In units of clip x the largest weight,
client i has the part r_ti = |a_i| / max_j |a_j| in it, and the sum gets Gaussian noise:

- `gaussian` (DP-FedAvg): z n_t, independent for each step. A step costs client i r_ti^2 / z^2
  (`fedpace.numerics.accounting`).
- `ftrl` (DP-FTRL with a banded matrix): z (C^-1 n)_t, where C has ones on its diagonal and c_k on its k-th diagonal
  below, c_k = c_(k-1) (2 k - 1) / (2 k), for k < `bands`: the square root of the matrix of prefix sums, cut to a band
  (Kalinin and Lampert, "Banded square root matrix factorization for differentially private model training", NeurIPS
  2024). Later noise takes earlier noise back, so that the model, which adds up all steps, has less of it. The server
  could as well be told C x + z n, row by row. Row s has the part |sum_t C_st r_ti| of client i, with independent noise,
  so a client's rows cost r' C'C r / z^2 together. This is exact whenever clients take part, and holds if who takes part
  depends on what was released, because each row is a Gaussian release given those before (Denisov et al. 2022).

Clients that take part more often, or with larger weights, spend more. A client whose budget would not last for another
full release is not asked again. Not protected: who takes part and when, weights, and anything but the sums. Selection
is not secret and not uniform, so nothing is gained from sampling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace._base.codec import decode_id, encode_id
from fedpace.core.privacy import TrainingPrivacy
from fedpace.core.sums import Member
from fedpace.numerics.accounting import gaussian_epsilon, gaussian_multiplier

ROUNDING = 1e-9
"""Part of the budget that rounding may add."""


def square_root_taps(bands: int) -> FloatArray:
    """(bands,) the diagonals of the square root of the lower triangular matrix of ones: 1, 1/2, 3/8, ..."""
    factors = [1.0, *((2 * k - 1) / (2 * k) for k in range(1, bands))]
    return np.cumprod(np.array(factors))


class PrivacyBudget:
    """The noise in the sums of a run, and the budgets of its clients.

    Args:
        privacy: epsilon, delta, clip, releases and mechanism; epsilon must be above 0.
    """

    def __init__(self, privacy: TrainingPrivacy) -> None:
        self.privacy = privacy
        self._taps = square_root_taps(privacy.bands if privacy.mechanism == "ftrl" else 1)
        bands = self._taps.size
        self._overlaps = np.array([float(self._taps[: bands - lag] @ self._taps[lag:]) for lag in range(bands)])
        """(bands,) product of two columns of C that are so many steps apart."""
        self.limit = gaussian_multiplier(privacy.epsilon, privacy.delta) ** -2
        """Cost that a client may spend."""
        self.multiplier = math.sqrt(privacy.releases * float(self._overlaps[0]) / self.limit)
        """z: noise per sum, in units of clip x the largest weight."""
        self.spent: dict[Hashable, float] = {}
        """Client -> cost of its releases so far."""
        self._recent: dict[Hashable, list[tuple[int, float]]] = {}
        """Client -> step and part of its releases in the last `bands` steps."""
        self._step = 0
        self._noise: list[FloatArray] = []
        """The noise of the last steps, the newest last."""

    def deviation(self, members: Iterable[Member]) -> float:
        """Return the standard deviation of the new noise in the sum of these members."""
        return self.multiplier * self.privacy.clip * max(self._weights(members).values(), default=0.0)

    def release(self, total: FloatArray, members: Iterable[Member], normal: Callable[[int], FloatArray]) -> FloatArray:
        """Return a sum of clipped updates with noise, and charge its members.

        Args:
            total: the sum of weight x clipped update.
            members: the clients in it.
            normal: returns so many standard normal numbers; secret ones, unless it is a simulation.
        """
        some = list(members)
        noise = normal(total.size)
        for tap, earlier in zip(self._taps[1:], reversed(self._noise), strict=False):
            noise = noise - tap * earlier
        self._noise = [*self._noise, noise][-(self._taps.size - 1) :] if self._taps.size > 1 else []
        released = total + self.deviation(some) * noise
        self.charge(some)
        return np.asarray(released)

    def affordable(self, client: Hashable) -> bool:
        """Return whether the client can take part in another sum with any weight."""
        return self.spent.get(client, 0.0) + self._cost(client, 1.0) <= self.limit * (1 + ROUNDING)

    def charge(self, members: Iterable[Member]) -> None:
        """Add the cost of a sum to the budgets of its members."""
        weights = self._weights(members)
        largest = max(weights.values(), default=0.0)
        for client, weight in weights.items():
            part = weight / largest if largest > 0 else 0.0
            self.spent[client] = self.spent.get(client, 0.0) + self._cost(client, part)
            if self._taps.size > 1:
                self._recent.setdefault(client, []).append((self._step, part))
        self._step += 1
        for client, entries in list(self._recent.items()):
            self._recent[client] = [entry for entry in entries if self._step - entry[0] < self._taps.size]
            if not self._recent[client]:
                del self._recent[client]

    def _cost(self, client: Hashable, part: float) -> float:
        """Return what a release in the current step costs, with all rows of C that the client will be in."""
        lags = [(self._step - step, other) for step, other in self._recent.get(client, ())]
        before = sum(other * float(self._overlaps[lag]) for lag, other in lags)
        return (part * part * float(self._overlaps[0]) + 2 * part * before) / self.multiplier**2

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

    def saved(self) -> tuple[dict[str, Any], dict[str, FloatArray]]:
        """Return the budgets as JSON, and the noise that later noise takes back, which must stay secret."""
        clients = [[encode_id(c), cost, self._recent.get(c, [])] for c, cost in self.spent.items()]
        return {"clients": clients, "step": self._step}, {f"noise {i}": row for i, row in enumerate(self._noise)}

    def load(self, saved: Mapping[str, Any], vectors: Mapping[str, Any]) -> None:
        """Restore what `saved` returned. Without the noise, later noise starts anew, which costs no privacy."""
        rows = [name for name in vectors if name.startswith("noise ")]
        self._noise = [np.asarray(vectors[name], dtype=np.float64) for name in sorted(rows, key=lambda n: int(n[6:]))]
        self.spent = {decode_id(client): float(cost) for client, cost, _ in saved["clients"]}
        if self._noise:
            recent = {decode_id(c): [(int(s), float(p)) for s, p in entries] for c, _, entries in saved["clients"]}
            self._recent = {client: entries for client, entries in recent.items() if entries}
        self._step = int(saved["step"])


def clipped(update: FloatArray, clip: float) -> FloatArray:
    """Return an update of length at most `clip`; an update that is not finite becomes 0."""
    length = float(np.sqrt(update @ update))
    if not np.isfinite(length):
        return np.zeros_like(update)
    return update if length <= clip else update * (clip / length)
