"""Linear regression: the model of the paper's sections 3 and 5, w -> <w, x>, started at 0."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from fedpace.models.base import Dense, LinearLayers


@dataclass(frozen=True)
class Linear(LinearLayers):
    """One linear layer on the raw inputs; no bias unless asked for.

    The paper's labels have none.
    """

    name: ClassVar[str] = "linear"

    bias: bool = False

    def dense(self, input_shape: tuple[int, ...], outputs: int) -> tuple[Dense, ...]:
        """Return the layer."""
        return (Dense(prod(input_shape), outputs, bias=self.bias, zero=True),)
