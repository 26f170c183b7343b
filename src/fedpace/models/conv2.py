"""The paper's 2-layer ConvNet: two 5x5 convolutions with 2x2 max-pooling, a hidden layer, a linear head.

The sizes are those of the authors' earlier code (Orienfish/Async-HFL): 20 and 50 channels, then 500, 1.7 MB for
MNIST. Its FEMNIST network is LEAF's: `channels = [32, 64]`, `padding = 2`, `hidden = 2048`, 26 MB.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from fedpace._base.checks import at_least
from fedpace._base.errors import InputError
from fedpace._base.options import AtLeast, Options

if TYPE_CHECKING:
    import torch

    from fedpace.models.base import FeatureModel

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
        from fedpace.models.base import FeatureModel, linear_layer

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
