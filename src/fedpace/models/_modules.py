"""Torch modules: `FeatureModel`, the base class of models, layers that models are built from, and users' modules.

Layers take their weights from a given generator, because torch's constructors use the global generator. `wrap` turns
any torch module into a model; its features are the inputs of its last linear layer. A module starts from its current
weights under every seed; a class or a function is called once per seed, with torch's generator seeded accordingly.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import nn

from fedpace._base.errors import FedpaceWarning, InputError
from fedpace.models.contract import CHUNK, Dense
from fedpace.models.custom import UserModel


class FeatureModel(nn.Module):
    """A body that computes features, and a linear head on top of them.

    The paper measures the heterogeneity of clients on the last layer's input, so every model here exposes it.

    Args:
        body: maps inputs to features.
        head: maps features to outputs.
        chunk: samples per batch in measurements; it bounds their memory and does not change results.
    """

    functions: Any = None
    """The user's functions (`fedpace.models.custom.Functions`); None = there are none."""

    def __init__(self, body: nn.Module, head: nn.Linear, *, chunk: int = CHUNK) -> None:
        super().__init__()
        self.body = body
        self.head = head
        self.chunk = chunk

    @property
    def moving_features(self) -> bool:
        """Whether training changes the features: False if the body has no parameters."""
        return any(True for _ in self.body.parameters())

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the parameters and buffers by their names."""
        return dict(self.state_dict())

    def features(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the last layer's input, (n, d)."""
        features: torch.Tensor = self.body(inputs)
        return features

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs, (n, classes) or (n, 1)."""
        outputs: torch.Tensor = self.head(self.body(inputs))
        return outputs


def dense_model(layers: Sequence[Dense], *, generator: torch.Generator) -> FeatureModel:
    """Return linear layers with ReLU between them; their weights are drawn in the order of the layers."""
    body: list[nn.Module] = [nn.Flatten()]
    for layer in layers[:-1]:
        body += [_dense_layer(layer, generator), nn.ReLU()]
    head = _dense_layer(layers[-1], generator)
    return FeatureModel(body[0] if len(body) == 1 else nn.Sequential(*body), head)


def _dense_layer(layer: Dense, generator: torch.Generator) -> nn.Linear:
    if layer.zero:
        return zero_layer(layer.inputs, layer.outputs, bias=layer.bias)
    return linear_layer(layer.inputs, layer.outputs, bias=layer.bias, generator=generator)


def linear_layer(inputs: int, outputs: int, *, bias: bool, generator: torch.Generator) -> nn.Linear:
    """Return a linear layer with Kaiming-uniform weights drawn from `generator`, never from global state."""
    layer = _blank_layer(inputs, outputs, bias=bias)
    bound = inputs**-0.5
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        if layer.bias is not None:
            layer.bias.uniform_(-bound, bound, generator=generator)
    return layer


def zero_layer(inputs: int, outputs: int, *, bias: bool) -> nn.Linear:
    """Return a linear layer that starts at 0, which is a good start for convex problems."""
    layer = _blank_layer(inputs, outputs, bias=bias)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    return layer


def _blank_layer(inputs: int, outputs: int, *, bias: bool) -> nn.Linear:
    """Return an uninitialised layer: torch's own initialisation would draw from its global generator."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=bias)  # type: ignore[no-untyped-call]
    return layer


class ChannelsLast(nn.Module):
    """Stores images pixel by pixel rather than channel by channel, which is the fastest order for convolutions.

    It saves a fifth of a training step's time on CPUs, and the following layers keep the order. It is part of the
    model, so that all users of the model get the same speed and the same bits.
    """

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the same images."""
        count, channels, height, width = images.shape
        if channels == 1 and images.is_contiguous():
            # Both orders are the same here, but torch assumes the slower one unless the strides say otherwise.
            return images.as_strided((count, 1, height, width), (height * width, 1, width, 1))
        return images.contiguous(memory_format=torch.channels_last)


def conv_layer(
    inputs: int, outputs: int, kernel: int, *, padding: int, bias: bool, generator: torch.Generator
) -> nn.Conv2d:
    """Return a convolution with torch's default initialisation, uniform within 1 / sqrt(fan-in)."""
    layer: nn.Conv2d = nn.utils.skip_init(  # type: ignore[no-untyped-call]
        nn.Conv2d, inputs, outputs, kernel, padding=padding, bias=bias
    )
    bound = prod(layer.weight.shape[1:]) ** -0.5
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
    return layer


def he_conv_layer(inputs: int, outputs: int, kernel: int, *, stride: int, generator: torch.Generator) -> nn.Conv2d:
    """Return a convolution without bias, with the initialisation of He et al. (2015); at stride 1 it keeps the size.

    Weights are normal with variance 2 / fan-out, which keeps the scale of gradients in a deep residual network.
    """
    layer: nn.Conv2d = nn.utils.skip_init(  # type: ignore[no-untyped-call]
        nn.Conv2d, inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False
    )
    deviation = (2 / (outputs * kernel**2)) ** 0.5
    with torch.no_grad():
        layer.weight.normal_(0, deviation, generator=generator)
    return layer


def embedding_layer(entries: int, width: int, *, generator: torch.Generator) -> nn.Embedding:
    """Return an embedding with standard normal entries."""
    layer: nn.Embedding = nn.utils.skip_init(nn.Embedding, entries, width)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        layer.weight.normal_(generator=generator)
    return layer


def lstm_layers(inputs: int, hidden: int, layers: int, *, generator: torch.Generator) -> nn.LSTM:
    """Return stacked LSTM layers over (batch, time, inputs), uniform within 1 / sqrt(hidden)."""
    # Does what `skip_init` does for the other layers, because it does not support the LSTM's arguments.
    stack = nn.LSTM(inputs, hidden, num_layers=layers, batch_first=True, device="meta").to_empty(device="cpu")
    bound = hidden**-0.5
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
    return stack


class Block(nn.Module):
    """A residual block: two 3x3 convolutions, with the input added to their output."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int, generator: torch.Generator) -> None:
        super().__init__()
        self.path = nn.Sequential(
            he_conv_layer(inputs, outputs, 3, stride=stride, generator=generator),
            nn.GroupNorm(groups, outputs),
            nn.ReLU(),
            he_conv_layer(outputs, outputs, 3, stride=1, generator=generator),
            nn.GroupNorm(groups, outputs),
        )
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(
                he_conv_layer(inputs, outputs, 1, stride=stride, generator=generator), nn.GroupNorm(groups, outputs)
            )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        return torch.relu(self.path(inputs) + self.skip(inputs))


class LastState(nn.Module):
    """Maps character numbers (n, time) to the last state of the top LSTM layer (n, hidden)."""

    def __init__(self, embedding: nn.Embedding, stack: nn.LSTM) -> None:
        super().__init__()
        self.embedding = embedding
        self.stack = stack

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the features."""
        # Windows are stored as bytes, an eighth of the size that torch's embedding needs.
        states, _ = self.stack(self.embedding(inputs.long()))
        last: torch.Tensor = states[:, -1]
        return last


ModuleSource = nn.Module | Callable[[], nn.Module]
TRIAL_SAMPLES = 2
"""Number of samples on which a module is tried."""


class WrappedModel(FeatureModel):
    """A user's module; its features are the inputs of its layer `head`."""

    def __init__(self, module: nn.Module, head: nn.Module) -> None:
        nn.Module.__init__(self)
        self.body = module
        self.chunk = 512
        object.__setattr__(self, "head", head)  # the head is already registered as part of the module

    @property
    def moving_features(self) -> bool:
        """Whether any parameter outside the head is trained."""
        own = {id(parameter) for parameter in self.head.parameters()}
        return any(p.requires_grad and id(p) not in own for p in self.body.parameters())

    def features(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the inputs of the head; if it is applied at several positions of a sample, their mean."""
        given: list[torch.Tensor] = []
        hook = self.head.register_forward_pre_hook(lambda _, arguments: given.append(arguments[0]))
        try:
            self.body(inputs)
        finally:
            hook.remove()
        if not given:
            raise InputError("the layer whose inputs are the features was not used: name another with head=")
        seen = given[-1]
        return seen.flatten(1, -2).mean(1) if seen.ndim > 2 else seen

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs, (n, classes) or (n, 1)."""
        outputs: torch.Tensor = self.body(inputs)
        return outputs.unsqueeze(1) if outputs.ndim == 1 else outputs

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the module's tensors by their names in the user's module."""
        return dict(self.body.state_dict())


def build_user_model(own: UserModel, input_shape: tuple[int, ...], generator: torch.Generator) -> WrappedModel:
    """Return a copy of the module, or a new one if the user gave a class or function."""
    source: ModuleSource = own.__dict__["source"]
    made = _instantiate(source, int(torch.randint(2**62, (), generator=generator)))
    if not isinstance(source, nn.Module):
        _trial_run(made, input_shape, own.tokens)  # lazy layers take their sizes from this call
    return WrappedModel(made, made.get_submodule(own.head))


def wrap(source: ModuleSource, input_shape: tuple[int, ...], *, head: str | None = None) -> UserModel:
    """Return `source` as a model for inputs of this shape, after trying it on a few inputs.

    Args:
        source: a module, or a class or function that returns one.
        input_shape: shape of one sample.
        head: name of the layer whose inputs are the features; None = the last linear layer that is used.
    """
    made = _instantiate(source, 0)
    name = type(made).__name__
    tokens = any(isinstance(part, nn.Embedding | nn.EmbeddingBag) for part in made.modules())
    if head is not None and head not in dict(made.named_modules()):
        layers = ", ".join(part for part, _ in made.named_modules() if part)
        raise InputError(f"{name} has no layer {head!r}; it has {layers or 'none'}")
    outputs, used, probabilities = _trial_run(made, input_shape, tokens)
    if probabilities:
        warnings.warn(
            f"{name} returns probabilities, but the loss makes them itself from what the last linear layer returns: "
            "trained as it is, it learns slowly; leave its softmax out",
            FedpaceWarning,
            stacklevel=5,  # the line that called compare or simulate
        )
    if head is None:
        if not used:
            raise InputError(
                f"{name} uses no nn.Linear, whose inputs would be its features: name another layer with head="
            )
        head = used[-1]
    if not any(parameter.requires_grad for parameter in made.parameters()):
        raise InputError(f"no parameter of {name} needs a gradient: there is nothing to train")
    found = UserModel(name, head, outputs, sum(p.numel() for p in made.parameters()), tokens)
    # Keep a copy, so that later changes of the user's module do not affect runs.
    found.__dict__["source"] = made if isinstance(source, nn.Module) else source
    return found


def _instantiate(source: ModuleSource, seed: int) -> nn.Module:
    if isinstance(source, nn.Module):
        made = copy.deepcopy(source)
    elif callable(source):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            try:
                made = source()
            except TypeError as cause:
                name = getattr(source, "__name__", repr(source))
                raise InputError(
                    f"model {name} cannot be called without arguments ({cause}): give an object, or lambda: {name}(...)"
                ) from cause
    else:
        made = source
    if not isinstance(made, nn.Module):
        raise InputError(f"model must be a torch.nn.Module, or a function that makes one, but {made!r} came")
    if any(parameter.is_complex() for parameter in made.parameters()):
        raise InputError(f"{type(made).__name__} has complex parameters, which cannot be averaged here")
    return made.to("cpu").float()


@torch.no_grad()
def _trial_run(module: nn.Module, input_shape: tuple[int, ...], tokens: bool) -> tuple[int, list[str], bool]:
    """Return the number of outputs, the linear layers in the order of use, and whether outputs are probabilities."""
    used: list[str] = []
    hooks = []
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear):
            hooks.append(part.register_forward_pre_hook(lambda *_, name=name: used.append(name)))
    before = module.training
    module.eval()
    inputs = torch.zeros((TRIAL_SAMPLES, *input_shape), dtype=torch.long if tokens else torch.float32)
    try:
        with torch.random.fork_rng(devices=[]):
            outputs: Any = module(inputs)
    except Exception as cause:  # whatever a user's code raises
        raise InputError(
            f"{type(module).__name__} does not take inputs of shape (n, {', '.join(map(str, input_shape))}) "
            f"({inputs.dtype}): {type(cause).__name__}: {cause}. Give X in the shape that it takes, such as "
            "(n, channels, height, width) for images"
        ) from cause
    finally:
        for hook in hooks:
            hook.remove()
        module.train(before)
    shape = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else None
    if shape is None or shape[0] != TRIAL_SAMPLES or len(shape) > 2:
        came = (
            f"a {type(outputs).__name__}" if shape is None else f"a tensor of shape {shape} for {TRIAL_SAMPLES} samples"
        )
        raise InputError(
            f"{type(module).__name__} must return one row of outputs per sample, (n, classes) or (n, 1), but it "
            f"returned {came}"
        )
    columns = shape[1] if len(shape) == 2 else 1
    sums = outputs.reshape(TRIAL_SAMPLES, -1).sum(1)
    return columns, used, columns > 1 and bool((outputs >= 0).all() and torch.allclose(sums, torch.ones_like(sums)))
