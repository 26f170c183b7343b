"""`UserModel` describes a user's torch module for records, and builds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import torch

    from fedpace.models.base import FeatureModel


@dataclass(frozen=True)
class UserModel:
    """A user's torch module. The fields describe it in records; create one with `fedpace.models._wrapped.wrap`."""

    name: ClassVar[str] = "own"

    module: str
    head: str
    outputs: int
    parameters: int
    tokens: bool
    """Whether the inputs are integers, as for an embedding."""

    def build(self, input_shape: tuple[int, ...], outputs: int, *, generator: torch.Generator) -> FeatureModel:
        """Return a copy of the module, or a new one if the user gave a class or function."""
        from fedpace.models._wrapped import build_user_model

        return build_user_model(self, input_shape, generator)
