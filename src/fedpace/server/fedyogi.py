"""FedYogi: Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), Algorithm 2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedpace.core.server_rule import Vector
from fedpace.server._adaptive import Adaptive


@dataclass(frozen=True)
class Fedyogi(Adaptive):
    """Adam with an additive rule for the variance.

    The variance changes by at most (1 - b2) u^2 per step, so that it forgets large updates more slowly than Adam's.
    """

    name: ClassVar[str] = "fedyogi"

    def variance(self, before: Vector, square: Vector) -> Vector:
        """v <- v - (1 - b2) u^2 sign(v - u^2)."""
        sign = 1.0 * (before > square) - 1.0 * (before < square)
        return before - (1 - self.beta_2) * square * sign
