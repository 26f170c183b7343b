"""A small multi-layer perceptron: the simplest model in which training changes the features."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from fedpace._base.checks import at_least
from fedpace.models.base import Dense, LinearLayers


@dataclass(frozen=True)
class Mlp(LinearLayers):
    """Hidden layers with ReLU, then a linear head.

    Args:
        hidden: width of each hidden layer; the last one is the feature dimension.
        layers: number of hidden layers.
    """

    name: ClassVar[str] = "mlp"

    hidden: int = 64
    layers: int = 1

    def __post_init__(self) -> None:
        """Raise if an option is invalid."""
        at_least(self.hidden, 1, "hidden of mlp")
        at_least(self.layers, 1, "layers of mlp")

    def dense(self, input_shape: tuple[int, ...], outputs: int) -> tuple[Dense, ...]:
        """Return the hidden layers and the head."""
        hidden = [Dense(prod(input_shape), self.hidden)] + [Dense(self.hidden, self.hidden)] * (self.layers - 1)
        return (*hidden, Dense(self.hidden, outputs))
