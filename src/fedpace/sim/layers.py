"""`linear_layers` detects torch modules of linear layers with ReLU, for which many clients can be trained at once."""

from __future__ import annotations

from torch import nn

from fedpace.models._modules import FeatureModel
from fedpace.models._wrapped import WrappedModel
from fedpace.sim.linear import Layer

STACKABLE_PARAMETERS = 200_000
"""Largest number of parameters for which clients are stacked; larger models are fast enough one by one."""


def linear_layers(module: FeatureModel, input_shape: tuple[int, ...] = ()) -> tuple[Layer, ...] | None:
    """Return the layers of a model of linear layers with ReLU between them; None for any other model.

    `input_shape` is the shape of one sample. Without an `nn.Flatten` the model must take flat samples.
    """
    if type(module) is FeatureModel:
        body = list(module.body) if isinstance(module.body, nn.Sequential) else [module.body]
        parts = [*body, module.head]
    elif type(module) is WrappedModel and type(module.body) is nn.Sequential:
        parts = list(module.body)
    else:
        return None
    if type(parts[0]) is nn.Flatten and (parts[0].start_dim, parts[0].end_dim) == (1, -1):
        parts = parts[1:]
    elif len(input_shape) != 1:
        return None
    if len(parts) % 2 == 0 or any(type(part) is not nn.ReLU for part in parts[1::2]) or module.head is not parts[-1]:
        return None
    layers: list[Layer] = []
    for part in parts[::2]:
        # Hooks (as of weight norm) and frozen weights (as in fine-tuning) change what the layer computes.
        if type(part) is not nn.Linear or part._forward_pre_hooks or part._forward_hooks:
            return None
        if not all(parameter.requires_grad for parameter in part.parameters()):
            return None
        start = layers[-1].end if layers else 0
        layers.append(Layer(part.out_features, part.in_features, start, part.bias is not None))
    shared = sum(parameter.numel() for parameter in module.parameters()) != layers[-1].end
    return None if shared or layers[-1].end > STACKABLE_PARAMETERS else tuple(layers)
