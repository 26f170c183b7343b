"""A small multi-layer perceptron: the least model whose features move as it trains."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import nn

from fedpace.core.checks import at_least
from fedpace.models.base import FeatureModel, linear_layer


@dataclass(frozen=True)
class Mlp:
    """Hidden layers with ReLU, then a linear head.

    Args:
        hidden: width of each hidden layer; the last one is the feature dimension.
        layers: number of hidden layers.
    """

    name: ClassVar[str] = "mlp"

    hidden: int = 64
    layers: int = 1

    def __post_init__(self) -> None:
        """Refuse options that make no sense."""
        at_least(self.hidden, 1, "hidden of mlp")
        at_least(self.layers, 1, "layers of mlp")

    def build(self, input_shape: tuple[int, ...], outputs: int, *, generator: torch.Generator) -> FeatureModel:
        """Return the model."""
        body: list[nn.Module] = [nn.Flatten()]
        width = prod(input_shape)
        for _ in range(self.layers):
            body += [linear_layer(width, self.hidden, bias=True, generator=generator), nn.ReLU()]
            width = self.hidden
        return FeatureModel(nn.Sequential(*body), linear_layer(width, outputs, bias=True, generator=generator))
