"""Softmax regression: one linear layer with a bias on the raw inputs, started at 0; the loss applies the softmax."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from fedpace.models.base import Dense, LinearLayers


@dataclass(frozen=True)
class Softmax(LinearLayers):
    """Multinomial logistic regression."""

    name: ClassVar[str] = "softmax"

    def dense(self, input_shape: tuple[int, ...], outputs: int) -> tuple[Dense, ...]:
        """Return the layer."""
        return (Dense(prod(input_shape), outputs, zero=True),)
