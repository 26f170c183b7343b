"""The interface of model configurations (`ModelConfig`, `LinearLayers`), without torch; building a model loads torch.

Authors of models can import `FeatureModel`, `linear_layer` and `zero_layer` from here; these come from `_modules.py`
and load torch at first use.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    import torch

    from fedpace.models._modules import FeatureModel as FeatureModel
    from fedpace.models._modules import linear_layer as linear_layer
    from fedpace.models._modules import zero_layer as zero_layer

OFFERED = ("FeatureModel", "linear_layer", "zero_layer")
CHUNK = 4096
"""Default samples per batch in measurements; it bounds their memory and does not change results."""


class ModelConfig(Protocol):
    """A named model before it is built for data: a frozen dataclass whose fields are its options."""

    name: ClassVar[str]

    def build(self, input_shape: tuple[int, ...], outputs: int, *, generator: torch.Generator) -> FeatureModel:
        """Return a new model with initial weights from `generator`."""


@dataclass(frozen=True)
class Dense:
    """The sizes of a linear layer."""

    inputs: int
    outputs: int
    bias: bool = True
    zero: bool = False
    """Whether the weights start at 0, a good start for convex problems, instead of Kaiming-uniform draws."""


class LinearLayers(ABC):
    """Base class of models of linear layers with ReLU between them.

    A subclass returns the layers' sizes. From these the torch module is built, and NumPy can train it without torch.
    """

    @abstractmethod
    def dense(self, input_shape: tuple[int, ...], outputs: int) -> tuple[Dense, ...]:
        """Return the layers; the last is the head, and inputs are flattened before the first."""

    def build(self, input_shape: tuple[int, ...], outputs: int, *, generator: torch.Generator) -> FeatureModel:
        """Return the model."""
        from fedpace.models._modules import dense_model

        return dense_model(self.dense(input_shape, outputs), generator=generator)


def __getattr__(name: str) -> Any:
    if name in OFFERED:
        return getattr(importlib.import_module("fedpace.models._modules"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
