"""A torch module whose parameters are one flat vector.

Aggregation, momentum and the SGD step are then single operations on contiguous memory instead of loops over layers, and
a model is a plain array wherever it travels.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from fedpace.models.base import FeatureModel


class FlatModel:
    """A module, with `parameters` and `gradients` as flat views of it."""

    def __init__(self, module: FeatureModel, *, classification: bool) -> None:
        self.module = module
        self.classification = classification
        trainable = list(module.parameters())
        self.parameters = torch.cat([parameter.detach().reshape(-1) for parameter in trainable])
        self.gradients = torch.zeros_like(self.parameters)
        start = 0
        for parameter in trainable:
            end = start + parameter.numel()
            parameter.data = self.parameters[start:end].view(parameter.shape)
            parameter.grad = self.gradients[start:end].view(parameter.shape)
            start = end

    @property
    def bytes(self) -> int:
        """Size of the model on the wire."""
        return self.parameters.numel() * self.parameters.element_size()

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean training loss on a batch."""
        return self.criterion(self.module(inputs), targets)

    def criterion(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean training loss of outputs: cross-entropy, or half the squared error as in the paper."""
        if self.classification:
            return functional.cross_entropy(outputs, targets)
        return 0.5 * functional.mse_loss(outputs.squeeze(1), targets)
