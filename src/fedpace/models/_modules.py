"""Torch modules: `FeatureModel`, the base class of models, and layers that models are built from.

Layers take their weights from a given generator, because torch's constructors use the global generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

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

    functions: Any = None
    """The user's functions (`fedpace.models.custom.Functions`); None = there are none."""

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


class ChannelsLast(nn.Module):
    """Stores images pixel by pixel rather than channel by channel, which is the fastest order for convolutions.

    It saves a fifth of a training step's time on CPUs, and the following layers keep the order. It is part of the
    model, so that all users of the model get the same speed and the same bits.
    """

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the same images."""
        count, channels, height, width = images.shape
        if channels == 1 and images.is_contiguous():
            # Both orders are the same here, but torch assumes the slower one unless the strides say otherwise.
            return images.as_strided((count, 1, height, width), (height * width, 1, width, 1))
        return images.contiguous(memory_format=torch.channels_last)


def conv_layer(
    inputs: int, outputs: int, kernel: int, *, stride: int = 1, padding: int = 0, bias: bool, generator: torch.Generator
) -> nn.Conv2d:
    """Return a convolution with torch's default initialisation, uniform within 1 / sqrt(fan-in)."""
    layer: nn.Conv2d = nn.utils.skip_init(  # type: ignore[no-untyped-call]
        nn.Conv2d, inputs, outputs, kernel, stride=stride, padding=padding, bias=bias
    )
    bound = prod(layer.weight.shape[1:]) ** -0.5
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
    return layer


def he_conv_layer(inputs: int, outputs: int, kernel: int, *, stride: int, generator: torch.Generator) -> nn.Conv2d:
    """Return a convolution without bias, with the initialisation of He et al. (2015); at stride 1 it keeps the size.

    Weights are normal with variance 2 / fan-out, which keeps the scale of gradients in a deep residual network.
    """
    layer: nn.Conv2d = nn.utils.skip_init(  # type: ignore[no-untyped-call]
        nn.Conv2d, inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False
    )
    deviation = (2 / (outputs * kernel**2)) ** 0.5
    with torch.no_grad():
        layer.weight.normal_(0, deviation, generator=generator)
    return layer


def embedding_layer(entries: int, width: int, *, generator: torch.Generator) -> nn.Embedding:
    """Return an embedding with standard normal entries."""
    layer: nn.Embedding = nn.utils.skip_init(nn.Embedding, entries, width)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        layer.weight.normal_(generator=generator)
    return layer


def lstm_layers(inputs: int, hidden: int, layers: int, *, generator: torch.Generator) -> nn.LSTM:
    """Return stacked LSTM layers over (batch, time, inputs), uniform within 1 / sqrt(hidden)."""
    # Does what `skip_init` does for the other layers, because it does not support the LSTM's arguments.
    stack = nn.LSTM(inputs, hidden, num_layers=layers, batch_first=True, device="meta").to_empty(device="cpu")
    bound = hidden**-0.5
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
    return stack


class Block(nn.Module):
    """A residual block: two 3x3 convolutions, with the input added to their output."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int, generator: torch.Generator) -> None:
        super().__init__()
        self.path = nn.Sequential(
            he_conv_layer(inputs, outputs, 3, stride=stride, generator=generator),
            nn.GroupNorm(groups, outputs),
            nn.ReLU(),
            he_conv_layer(outputs, outputs, 3, stride=1, generator=generator),
            nn.GroupNorm(groups, outputs),
        )
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(
                he_conv_layer(inputs, outputs, 1, stride=stride, generator=generator), nn.GroupNorm(groups, outputs)
            )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        return torch.relu(self.path(inputs) + self.skip(inputs))


class LastState(nn.Module):
    """Maps character numbers (n, time) to the last state of the top LSTM layer (n, hidden)."""

    def __init__(self, embedding: nn.Embedding, stack: nn.LSTM) -> None:
        super().__init__()
        self.embedding = embedding
        self.stack = stack

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the features."""
        # Windows are stored as bytes, an eighth of the size that torch's embedding needs.
        states, _ = self.stack(self.embedding(inputs.long()))
        last: torch.Tensor = states[:, -1]
        return last
