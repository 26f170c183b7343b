"""Softmax regression: one linear layer with a bias on the raw inputs, started at 0; the loss applies the softmax."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import nn

from fedpace.models.base import FeatureModel, zero_layer


@dataclass(frozen=True)
class Softmax:
    """Multinomial logistic regression."""

    name: ClassVar[str] = "softmax"

    def build(self, input_shape: tuple[int, ...], outputs: int, *, generator: torch.Generator) -> FeatureModel:
        """Return the model."""
        return FeatureModel(nn.Flatten(), zero_layer(prod(input_shape), outputs, bias=True))
