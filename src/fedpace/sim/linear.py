"""Positions of linear layers in a model's flat parameter vector, for torch tensors and NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedpace.core.stepping import Vector
from fedpace.models.base import Dense


@dataclass(frozen=True)
class Layer:
    """The position of a linear layer in the flat parameter vector."""

    outputs: int
    inputs: int
    start: int
    bias: bool

    @property
    def middle(self) -> int:
        """Index at which the weights end and the bias starts."""
        return self.start + self.outputs * self.inputs

    @property
    def end(self) -> int:
        """Index after the layer's last entry."""
        return self.middle + (self.outputs if self.bias else 0)

    def weight(self, stack: Vector) -> Vector:
        """Return the weights (clients, outputs, inputs) in a stack of models (clients, parameters)."""
        return stack[:, self.start : self.middle].reshape(-1, self.outputs, self.inputs)  # a view, never a copy

    def offset(self, stack: Vector) -> Vector:
        """Return the biases (clients, outputs) in a stack of models."""
        return stack[:, self.middle : self.end]


def lay_out(layers: Iterable[Dense]) -> tuple[Layer, ...]:
    """Return the positions of consecutive layers, in the order in which torch modules list parameters."""
    found: list[Layer] = []
    for layer in layers:
        found.append(Layer(layer.outputs, layer.inputs, found[-1].end if found else 0, layer.bias))
    return tuple(found)
