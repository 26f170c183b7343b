"""The linear layers of a model, as they lie in its flat vector of parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from fedpace.models.base import FeatureModel
from fedpace.models.wrapped import WrappedModel

STACKABLE_PARAMETERS = 200_000
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


def linear_layers(module: FeatureModel, input_shape: tuple[int, ...] = ()) -> tuple[Layer, ...] | None:
    """Return the layers of a model that is nothing but linear layers with ReLU between them; None for any other.

    `input_shape` of one sample: who flattens nothing must be given flat ones.
    """
    if type(module) is FeatureModel:
        body = list(module.body) if isinstance(module.body, nn.Sequential) else [module.body]
        parts = [*body, module.head]
    elif type(module) is WrappedModel and type(module.body) is nn.Sequential:
        parts = list(module.body)
    else:
        return None
    if type(parts[0]) is nn.Flatten and (parts[0].start_dim, parts[0].end_dim) == (1, -1):
        parts = parts[1:]
    elif len(input_shape) != 1:
        return None
    if len(parts) % 2 == 0 or any(type(part) is not nn.ReLU for part in parts[1::2]) or module.head is not parts[-1]:
        return None
    layers: list[Layer] = []
    for part in parts[::2]:
        # A hook or a frozen weight, such as weight norms and fine-tuning bring, makes it another layer.
        if type(part) is not nn.Linear or part._forward_pre_hooks or part._forward_hooks:
            return None
        if not all(parameter.requires_grad for parameter in part.parameters()):
            return None
        start = layers[-1].end if layers else 0
        layers.append(Layer(part.out_features, part.in_features, start, part.bias is not None))
    shared = sum(parameter.numel() for parameter in module.parameters()) != layers[-1].end
    return None if shared or layers[-1].end > STACKABLE_PARAMETERS else tuple(layers)
