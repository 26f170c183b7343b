"""What the simulator asks of a model before it is built; free of torch, which is loaded when one is.

`FeatureModel`, `linear_layer` and `zero_layer`, which authors of models need, are in `_modules.py`, and are loaded when
they are first named here.
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
"""Samples that are worked on at once where any number gives the same answer: it bounds the memory of measurements."""


class ModelConfig(Protocol):
    """A named model before it knows the data: a frozen dataclass whose fields are its options."""

    name: ClassVar[str]

    def build(self, input_shape: tuple[int, ...], outputs: int, *, generator: torch.Generator) -> FeatureModel:
        """Return a new model; `generator` makes its initial weights."""
        ...


@dataclass(frozen=True)
class Dense:
    """A linear layer by its sizes."""

    inputs: int
    outputs: int
    bias: bool = True
    zero: bool = False
    """Whether it starts at 0, where convex problems may as well start, rather than at Kaiming-uniform draws."""


class LinearLayers(ABC):
    """A model that is nothing but linear layers with ReLU between them.

    It says so by their sizes, from which torch's module is made, and what is trained without torch.
    """

    @abstractmethod
    def dense(self, input_shape: tuple[int, ...], outputs: int) -> tuple[Dense, ...]:
        """Return the layers, the last of which is the head; inputs are flattened before the first."""

    def build(self, input_shape: tuple[int, ...], outputs: int, *, generator: torch.Generator) -> FeatureModel:
        """Return the model."""
        from fedpace.models._modules import dense_model

        return dense_model(self.dense(input_shape, outputs), generator=generator)


def __getattr__(name: str) -> Any:
    if name in OFFERED:
        return getattr(importlib.import_module("fedpace.models._modules"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
