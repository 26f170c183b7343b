"""Control variates of SCAFFOLD.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning" (ICML 2020), Algorithm 1 with
option II. Local steps go along g_i(y) - c_i + c, and afterwards c_i <- c_i - c + (x - y_i) / (steps x lr).

Differences from the paper, and why: the paper updates c with |S|/m times the plain mean over the cohort, which assumes
uniform selection. Under any other selection c would drift away from the clients' c_i. Here each change is weighted by
the client's share, so c = sum_i share_i c_i holds after every round for every selection. If a scheme always selects the
same clients, the variates of the others would stay at 0. So the warm-up sets every client's variate to its gradient
(option I).
"""

from __future__ import annotations

from collections.abc import Mapping

from fedpace._base.checks import FloatArray
from fedpace.core.server_rule import Vector


class ControlVariates:
    """The server's variate c and the clients' variates c_i. A client that never took part has c_i = 0, not stored.

    Args:
        zero: a zero vector of the model's length.
        shares: the clients' weights in the objective.
    """

    def __init__(self, zero: Vector, shares: FloatArray) -> None:
        self._shares = shares
        self._own: dict[int, Vector] = {}
        self._zero = zero
        self.server = zero

    def of(self, client: int) -> Vector:
        """Return c_i of a client."""
        return self._own.get(client, self._zero)

    def replace(self, client: int, variate: Vector) -> None:
        """Set c_i, and move c by the client's share of the change."""
        self.server = self.server + (variate - self.of(client)) * float(self._shares[client])
        self._own[client] = variate

    def tensors(self) -> dict[str, Vector]:
        """Return the state as named tensors, for a checkpoint."""
        return {"server": self.server} | {str(client): variate for client, variate in self._own.items()}

    def load(self, tensors: Mapping[str, Vector]) -> None:
        """Restore the state that `tensors` returned."""
        self.server = tensors["server"]
        self._own = {int(client): variate for client, variate in tensors.items() if client != "server"}

    def round(self) -> RoundVariates:
        """Return the variates for one round, in which the cohort trains with a fixed c."""
        return RoundVariates(self, self.server)


class RoundVariates:
    """The server's c, frozen for one round."""

    def __init__(self, variates: ControlVariates, server: Vector) -> None:
        self._variates = variates
        self._server = server

    def correction(self, client: int) -> Vector:
        """Return what is added to each of the client's gradients, c - c_i."""
        return self._server - self._variates.of(client)

    def learn(self, client: int, drift: Vector) -> None:
        """Update c_i after local training; `drift` is (x - y_i) / (steps x lr)."""
        self._variates.replace(client, self._variates.of(client) - self._server + drift)
