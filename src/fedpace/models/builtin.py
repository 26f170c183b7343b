"""The built-in models. Their sizes are declared here without torch; `build` loads torch.

- `softmax`: one linear layer with a bias on the raw inputs, started at 0; the loss applies the softmax.
- `linear`: linear regression, the model of the paper's sections 3 and 5, w -> <w, x>, started at 0.
- `mlp`: the simplest model in which training changes the features.
- `conv2`: the paper's 2-layer ConvNet, with the sizes of the authors' earlier code (Orienfish/Async-HFL): 20 and 50
  channels, then 500, 1.7 MB for MNIST. Its FEMNIST network is LEAF's: `channels = [32, 64]`, `padding = 2`,
  `hidden = 2048`, 26 MB.
- `stacked-lstm`: the paper's model of the next character (LEAF, Caldas et al. 2018). Hidden 100 is the paper's feature
  dimension for Shakespeare; LEAF and the authors' other code use 256. The features are the top layer's state after the
  last character.
- `resnet18` for small images (He et al., CVPR 2016). Our choices, because the paper only says ResNet18: the stem for
  32x32 images, one 3x3 convolution and no pooling; GroupNorm (Wu and He, ECCV 2018) instead of BatchNorm, because
  averaging batch statistics over clients with different label mixes hurts (Hsieh et al., ICML 2020); `width`, channels
  of the first stage: 64 is ResNet18 with 11.2 million parameters, 16 a thin version with a sixteenth of the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Annotated, ClassVar

from fedpace._base.checks import at_least
from fedpace._base.errors import InputError
from fedpace._base.options import AtLeast, Options
from fedpace.models.contract import Dense, LinearLayers

if TYPE_CHECKING:
    import torch

    from fedpace.models.contract import FeatureModel


@dataclass(frozen=True)
class Softmax(LinearLayers):
    """Multinomial logistic regression."""

    name: ClassVar[str] = "softmax"

    def dense(self, input_shape: tuple[int, ...], outputs: int) -> tuple[Dense, ...]:
        """Return the layer."""
        return (Dense(prod(input_shape), outputs, zero=True),)


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


@dataclass(frozen=True)
class Mlp(Options, LinearLayers):
    """Hidden layers with ReLU, then a linear head.

    Args:
        hidden: width of each hidden layer; the last one is the feature dimension.
        layers: number of hidden layers.
    """

    name: ClassVar[str] = "mlp"

    hidden: Annotated[int, AtLeast(1)] = 64
    layers: Annotated[int, AtLeast(1)] = 1

    def dense(self, input_shape: tuple[int, ...], outputs: int) -> tuple[Dense, ...]:
        """Return the hidden layers and the head."""
        hidden = [Dense(prod(input_shape), self.hidden)] + [Dense(self.hidden, self.hidden)] * (self.layers - 1)
        return (*hidden, Dense(self.hidden, outputs))


KERNEL = 5


@dataclass(frozen=True)
class Conv2(Options):
    """Two 5x5 convolutions with max-pooling, one hidden layer, a head.

    Args:
        channels: of the two convolutions.
        padding: pixels of zeros around each convolution's input.
        hidden: width of the hidden layer, which is the feature dimension.
    """

    name: ClassVar[str] = "conv2"

    channels: tuple[int, int] = (20, 50)
    padding: Annotated[int, AtLeast(0)] = 0
    hidden: Annotated[int, AtLeast(1)] = 500

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        super().__post_init__()
        for channels in self.channels:
            at_least(channels, 1, "channels of conv2")

    def build(self, input_shape: tuple[int, ...], outputs: int, *, generator: torch.Generator) -> FeatureModel:
        """Return the model for images of (channels, height, width)."""
        from torch import nn

        from fedpace.models._modules import ChannelsLast, conv_layer
        from fedpace.models.contract import FeatureModel, linear_layer

        if len(input_shape) != 3:
            raise InputError(f"conv2 takes images of (channels, height, width), but inputs of {input_shape} came")
        width, *size = input_shape
        body: list[nn.Module] = [ChannelsLast()]
        for channels in self.channels:
            size = [(side + 2 * self.padding - KERNEL + 1) // 2 for side in size]
            if min(size) < 1:
                raise InputError(f"images of {input_shape} are too small for conv2: use 16 pixels a side or more")
            convolution = conv_layer(width, channels, KERNEL, padding=self.padding, bias=True, generator=generator)
            # Pooling first gives the same bits as ReLU first, and ReLU then has a quarter of the pixels.
            body += [convolution, nn.MaxPool2d(2), nn.ReLU()]
            width = channels
        flat = width * size[0] * size[1]
        body += [nn.Flatten(), linear_layer(flat, self.hidden, bias=True, generator=generator), nn.ReLU()]
        head = linear_layer(self.hidden, outputs, bias=True, generator=generator)
        return FeatureModel(nn.Sequential(*body), head, chunk=500)


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
        from fedpace.models.contract import FeatureModel, linear_layer

        if len(input_shape) != 1:
            raise InputError(f"stacked-lstm takes windows of (characters,), but inputs of {input_shape} came")
        body = LastState(
            embedding_layer(outputs, self.embedding, generator=generator),
            lstm_layers(self.embedding, self.hidden, self.layers, generator=generator),
        )
        return FeatureModel(body, linear_layer(self.hidden, outputs, bias=True, generator=generator), chunk=500)


STAGES = 4
BLOCKS = 2
"""Residual blocks per stage."""


@dataclass(frozen=True)
class Resnet18(Options):
    """ResNet18 for small images, with group normalisation.

    `width = 16` is the thin one for CPUs.

    Args:
        width: channels of the first stage; the features are 8 times as many.
        groups: groups of the group normalisation.
    """

    name: ClassVar[str] = "resnet18"

    width: Annotated[int, AtLeast(1)] = 64
    groups: Annotated[int, AtLeast(1)] = 8

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        super().__post_init__()
        if self.width % self.groups:
            raise InputError(f"groups of resnet18 must divide width = {self.width}, but {self.groups} came")

    def build(self, input_shape: tuple[int, ...], outputs: int, *, generator: torch.Generator) -> FeatureModel:
        """Return the model for images of (channels, height, width)."""
        from torch import nn

        from fedpace.models._modules import Block, he_conv_layer
        from fedpace.models.contract import FeatureModel, linear_layer

        if len(input_shape) != 3:
            raise InputError(f"resnet18 takes images of (channels, height, width), but inputs of {input_shape} came")
        body: list[nn.Module] = [
            he_conv_layer(input_shape[0], self.width, 3, stride=1, generator=generator),
            nn.GroupNorm(self.groups, self.width),
            nn.ReLU(),
        ]
        channels = self.width
        for stage in range(STAGES):
            wider = self.width * 2**stage
            for block in range(BLOCKS):
                stride = 2 if stage > 0 and block == 0 else 1
                body.append(Block(channels, wider, stride, self.groups, generator))
                channels = wider
        body += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        head = linear_layer(channels, outputs, bias=True, generator=generator)
        return FeatureModel(nn.Sequential(*body), head, chunk=250)
