"""ResNet18 for small images (He et al., CVPR 2016), with group normalisation.

Our choices, because the paper only says ResNet18:
- the stem for 32x32 images, one 3x3 convolution and no pooling, instead of ImageNet's 7x7 with stride 2;
- GroupNorm (Wu and He, ECCV 2018) instead of BatchNorm: averaging batch statistics over clients with different label
  mixes hurts (Hsieh et al., ICML 2020), and with GroupNorm a model has no buffers;
- `width`: channels of the first stage. 64 is ResNet18 with 11.2 million parameters; 16 is a thin version for CPUs, with
  a sixteenth of the parameters and of the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from fedpace._base.errors import InputError
from fedpace._base.options import AtLeast, Options

if TYPE_CHECKING:
    import torch

    from fedpace.models.base import FeatureModel

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
        from fedpace.models.base import FeatureModel, linear_layer

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
