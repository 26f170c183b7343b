"""Linear regression: the model of the paper's sections 3 and 5, w -> <w, x>, started at 0."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import nn

from fedpace.models.base import FeatureModel, zero_layer


@dataclass(frozen=True)
class Linear:
    """One linear layer on the raw inputs; no bias unless asked for.

    The paper's labels have none.
    """

    name: ClassVar[str] = "linear"

    bias: bool = False

    def build(self, input_shape: tuple[int, ...], outputs: int, *, generator: torch.Generator) -> FeatureModel:
        """Return the model."""
        return FeatureModel(nn.Flatten(), zero_layer(prod(input_shape), outputs, bias=self.bias))
