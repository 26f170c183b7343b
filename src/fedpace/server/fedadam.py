"""FedAdam: Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), Algorithm 2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedpace.core.server_rule import Vector
from fedpace.server._adaptive import Adaptive


@dataclass(frozen=True)
class Fedadam(Adaptive):
    """Adam on the averaged updates."""

    name: ClassVar[str] = "fedadam"

    def variance(self, before: Vector, square: Vector) -> Vector:
        """v <- b2 v + (1 - b2) u^2."""
        return self.beta_2 * before + (1 - self.beta_2) * square
