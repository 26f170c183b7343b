"""The linear layers of a model, as they lie in its flat vector of parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from fedpace.models.base import FeatureModel

LARGEST = 200_000
"""Parameters up to which clients are stacked: above, the products are large enough by themselves."""


@dataclass(frozen=True)
class Layer:
    """A linear layer as it lies in the flat vector of parameters."""

    outputs: int
    inputs: int
    start: int
    bias: bool

    @property
    def middle(self) -> int:
        """Where the weights end and the bias starts."""
        return self.start + self.outputs * self.inputs

    @property
    def end(self) -> int:
        """Where the layer ends."""
        return self.middle + (self.outputs if self.bias else 0)

    def weight(self, stack: torch.Tensor) -> torch.Tensor:
        """Return the (clients, outputs, inputs) weights within a (clients, parameters) stack."""
        return stack[:, self.start : self.middle].view(-1, self.outputs, self.inputs)

    def offset(self, stack: torch.Tensor) -> torch.Tensor:
        """Return the (clients, outputs) biases within a stack."""
        return stack[:, self.middle : self.end]


def linear_layers(module: FeatureModel) -> tuple[Layer, ...] | None:
    """Return the layers of a model that is nothing but linear layers with ReLU between them; None for any other."""
    if type(module) is not FeatureModel:
        return None
    body = list(module.body) if isinstance(module.body, nn.Sequential) else [module.body]
    linears = [part for part in (*body[1::2], module.head) if type(part) is nn.Linear]
    if (
        len(body) % 2 == 0
        or type(body[0]) is not nn.Flatten
        or any(type(part) is not nn.ReLU for part in body[2::2])
        or len(linears) <= len(body) // 2
    ):
        return None
    layers: list[Layer] = []
    for part in linears:
        start = layers[-1].end if layers else 0
        layers.append(Layer(part.out_features, part.in_features, start, part.bias is not None))
    return tuple(layers) if layers[-1].end <= LARGEST else None
