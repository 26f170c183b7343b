"""A small multi-layer perceptron: the simplest model in which training changes the features."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Annotated, ClassVar

from fedpace._base.options import AtLeast, Options
from fedpace.models.base import Dense, LinearLayers


@dataclass(frozen=True)
class Mlp(Options, LinearLayers):
    """Hidden layers with ReLU, then a linear head.

    Args:
        hidden: width of each hidden layer; the last one is the feature dimension.
        layers: number of hidden layers.
    """

    name: ClassVar[str] = "mlp"

    hidden: Annotated[int, AtLeast(1)] = 64
    layers: Annotated[int, AtLeast(1)] = 1

    def dense(self, input_shape: tuple[int, ...], outputs: int) -> tuple[Dense, ...]:
        """Return the hidden layers and the head."""
        hidden = [Dense(prod(input_shape), self.hidden)] + [Dense(self.hidden, self.hidden)] * (self.layers - 1)
        return (*hidden, Dense(self.hidden, outputs))
