"""A torch module that a program handed over, described: what records say of it, and what builds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import torch

    from fedpace.models.base import FeatureModel


@dataclass(frozen=True)
class OwnModel:
    """A module that a program handed over. Its fields describe it; `fedpace.models._wrapped.wrap` makes one."""

    name: ClassVar[str] = "own"

    module: str
    head: str
    outputs: int
    parameters: int
    tokens: bool
    """Whether it takes whole numbers, as an embedding does."""

    def build(self, input_shape: tuple[int, ...], outputs: int, *, generator: torch.Generator) -> FeatureModel:
        """Return a copy of the module, or a new one where a function makes them."""
        from fedpace.models._wrapped import build_own

        return build_own(self, input_shape, generator)
