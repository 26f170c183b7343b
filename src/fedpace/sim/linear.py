"""Linear layers as they lie in a model's flat vector of parameters, a torch tensor or a NumPy array."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedpace.core.stepping import Vector
from fedpace.models.base import Dense


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

    def weight(self, stack: Vector) -> Vector:
        """Return the (clients, outputs, inputs) weights within a (clients, parameters) stack."""
        return stack[:, self.start : self.middle].reshape(-1, self.outputs, self.inputs)  # a view, never a copy

    def offset(self, stack: Vector) -> Vector:
        """Return the (clients, outputs) biases within a stack."""
        return stack[:, self.middle : self.end]


def lay_out(layers: Iterable[Dense]) -> tuple[Layer, ...]:
    """Return layers one behind the other, as torch's modules list their parameters."""
    found: list[Layer] = []
    for layer in layers:
        found.append(Layer(layer.outputs, layer.inputs, found[-1].end if found else 0, layer.bias))
    return tuple(found)
