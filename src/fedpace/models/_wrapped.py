"""`wrap` turns any torch module into a model of the simulator; the features are the inputs of its last linear layer.

A module starts from its current weights under every seed. A class or a function without arguments is called once per
seed, with torch's generator seeded accordingly.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fedpace._base.errors import FedpaceWarning, InputError
from fedpace.models._modules import FeatureModel
from fedpace.models._own import UserModel

ModuleSource = nn.Module | Callable[[], nn.Module]
TRIAL_SAMPLES = 2
"""Number of samples on which a module is tried."""


class WrappedModel(FeatureModel):
    """A user's module; its features are the inputs of its layer `head`."""

    def __init__(self, module: nn.Module, head: nn.Module, *, chunk: int = 512) -> None:
        nn.Module.__init__(self)
        self.body = module
        self.chunk = chunk
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
