"""`FeatureModel`, the base class of torch models: it returns logits, and the input of the last layer as features."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from fedpace.models.base import CHUNK, Dense


class FeatureModel(nn.Module):
    """A body that computes features, and a linear head on top of them.

    The paper measures the heterogeneity of clients on the last layer's input, so every model here exposes it.

    Args:
        body: maps inputs to features.
        head: maps features to outputs.
        chunk: samples per batch in measurements; it bounds their memory and does not change results.
    """

    def __init__(self, body: nn.Module, head: nn.Linear, *, chunk: int = CHUNK) -> None:
        super().__init__()
        self.body = body
        self.head = head
        self.chunk = chunk

    @property
    def moving_features(self) -> bool:
        """Whether training changes the features: False if the body has no parameters."""
        return any(True for _ in self.body.parameters())

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the parameters and buffers by their names."""
        return dict(self.state_dict())

    def features(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the last layer's input, (n, d)."""
        features: torch.Tensor = self.body(inputs)
        return features

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs, (n, classes) or (n, 1)."""
        outputs: torch.Tensor = self.head(self.body(inputs))
        return outputs


def dense_model(layers: Sequence[Dense], *, generator: torch.Generator) -> FeatureModel:
    """Return linear layers with ReLU between them; their weights are drawn in the order of the layers."""
    body: list[nn.Module] = [nn.Flatten()]
    for layer in layers[:-1]:
        body += [_dense_layer(layer, generator), nn.ReLU()]
    head = _dense_layer(layers[-1], generator)
    return FeatureModel(body[0] if len(body) == 1 else nn.Sequential(*body), head)


def _dense_layer(layer: Dense, generator: torch.Generator) -> nn.Linear:
    if layer.zero:
        return zero_layer(layer.inputs, layer.outputs, bias=layer.bias)
    return linear_layer(layer.inputs, layer.outputs, bias=layer.bias, generator=generator)


def linear_layer(inputs: int, outputs: int, *, bias: bool, generator: torch.Generator) -> nn.Linear:
    """Return a linear layer with Kaiming-uniform weights drawn from `generator`, never from global state."""
    layer = _blank_layer(inputs, outputs, bias=bias)
    bound = inputs**-0.5
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        if layer.bias is not None:
            layer.bias.uniform_(-bound, bound, generator=generator)
    return layer


def zero_layer(inputs: int, outputs: int, *, bias: bool) -> nn.Linear:
    """Return a linear layer that starts at 0, which is a good start for convex problems."""
    layer = _blank_layer(inputs, outputs, bias=bias)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    return layer


def _blank_layer(inputs: int, outputs: int, *, bias: bool) -> nn.Linear:
    """Return an uninitialised layer: torch's own initialisation would draw from its global generator."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=bias)  # type: ignore[no-untyped-call]
    return layer
