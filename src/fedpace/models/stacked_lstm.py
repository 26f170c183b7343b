"""The paper's StackedLSTM for the next character (LEAF, Caldas et al. 2018): embedding, two LSTM layers, linear head.

Hidden 100 is the paper's feature dimension for Shakespeare; LEAF and the authors' other code use 256. The features are
the top layer's state after the last character, which is the input of the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from fedpace._base.errors import InputError
from fedpace._base.options import AtLeast, Options

if TYPE_CHECKING:
    import torch

    from fedpace.models.base import FeatureModel


@dataclass(frozen=True)
class StackedLstm(Options):
    """Embedding, stacked LSTM, linear head: the next character.

    Args:
        embedding: width of a character's embedding.
        hidden: width of each LSTM layer, which is the feature dimension.
        layers: number of LSTM layers.
    """

    name: ClassVar[str] = "stacked-lstm"

    embedding: Annotated[int, AtLeast(1)] = 8
    hidden: Annotated[int, AtLeast(1)] = 100
    layers: Annotated[int, AtLeast(1)] = 2

    def build(self, input_shape: tuple[int, ...], outputs: int, *, generator: torch.Generator) -> FeatureModel:
        """Return the model; inputs and predictions use the same alphabet of `outputs` characters."""
        from fedpace.models._modules import LastState, embedding_layer, lstm_layers
        from fedpace.models.base import FeatureModel, linear_layer

        if len(input_shape) != 1:
            raise InputError(f"stacked-lstm takes windows of (characters,), but inputs of {input_shape} came")
        body = LastState(
            embedding_layer(outputs, self.embedding, generator=generator),
            lstm_layers(self.embedding, self.hidden, self.layers, generator=generator),
        )
        return FeatureModel(body, linear_layer(self.hidden, outputs, bias=True, generator=generator), chunk=500)
