"""SCAFFOLD's control variates.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning" (ICML 2020), Algorithm 1 with
option II. Local steps go along g_i(y) - c_i + c, and afterwards c_i <- c_i - c + (x - y_i) / (steps x lr).

Where we depart, and why: the paper updates c with |S|/m times the plain mean over the cohort, which assumes uniform
selection. Under any other selection c would drift away from the clients' c_i; here each change enters with the client's
share, so that c = sum_i share_i c_i holds after every round, whoever was chosen. A fixed set would leave the variates
of the others at 0 for ever: the warm-up initialises everybody's with its gradient (option I).
"""

from __future__ import annotations

from collections.abc import Mapping

from fedpace._base.checks import FloatArray
from fedpace.core.stepping import Vector


class ControlVariates:
    """c and the clients' c_i. A client that never took part has c_i = 0 and costs no memory.

    Args:
        zero: zeros as long as a model.
        shares: the clients' weights in the objective.
    """

    def __init__(self, zero: Vector, shares: FloatArray) -> None:
        self._shares = shares
        self._own: dict[int, Vector] = {}
        self._zero = zero
        self.server = zero

    def of(self, client: int) -> Vector:
        """Return c_i."""
        return self._own.get(client, self._zero)

    def replace(self, client: int, variate: Vector) -> None:
        """Set c_i, and move c by the client's share of the change."""
        self.server = self.server + (variate - self.of(client)) * float(self._shares[client])
        self._own[client] = variate

    def tensors(self) -> dict[str, Vector]:
        """Return all that is needed to go on later."""
        return {"server": self.server} | {str(client): variate for client, variate in self._own.items()}

    def load(self, tensors: Mapping[str, Vector]) -> None:
        """Take over what `tensors` gave."""
        self.server = tensors["server"]
        self._own = {int(client): variate for client, variate in tensors.items() if client != "server"}

    def round(self) -> RoundVariates:
        """Return the variates as the cohort of this round sees them: c does not move while it trains."""
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
        """Update c_i after local training that moved by `drift` a step, in units of the step size."""
        self._variates.replace(client, self._variates.of(client) - self._server + drift)
