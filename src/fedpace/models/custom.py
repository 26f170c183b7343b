"""A user's own functions in place of parts of the simulator: `train`, `loss` and `metric` of `compare` and `simulate`.

def train(model, data, work):
    optimiser = torch.optim.AdamW(model.parameters(), lr=work.training.lr)
    for _ in range(work.epochs):
        for rows in data.batches(32, work.rng):
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(data.inputs[rows]), data.targets[rows])
            loss.backward()
            optimiser.step()
    return loss.item()

fedpace.compare(..., model=net, train=train, metric=f1, better="higher")
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from fedpace._base.checks import IntArray, is_number, shortened
from fedpace._base.errors import InputError
from fedpace.models.contract import ModelConfig

if TYPE_CHECKING:
    import torch

    from fedpace.models.contract import FeatureModel


class TrainReport(NamedTuple):
    """What a user's training function returns; a number alone is the loss."""

    loss: float
    """Training loss of the client."""
    steps: int = 1
    """Optimiser steps that were taken."""


@dataclass(frozen=True, eq=False)
class ClientData:
    """The data of one client, as tensors on the device of the model."""

    client: int
    inputs: torch.Tensor
    targets: torch.Tensor

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.targets)

    def batches(self, size: int, rng: np.random.Generator) -> Iterator[IntArray]:
        """Yield the rows of the minibatches of one epoch, in random order; size 0 = all rows at once."""
        order = rng.permutation(len(self))
        for start in range(0, len(self), size or len(self)):
            yield order[start : start + (size or len(self))]


@dataclass(frozen=True, eq=False)
class Work:
    """What a client is asked to do."""

    step: int
    """Number of the server step, or of the client's task in schemes without rounds."""
    part: float
    """Multiple of the usual local training that the scheme asks for; 1 = as configured."""
    training: Any
    """The options of local training (`fedpace.Training`)."""
    rng: np.random.Generator
    """Random numbers of this task. Use no others, so that runs can be repeated."""

    @property
    def epochs(self) -> int:
        """Epochs to train: those of `training` times `part`, at least 1."""
        return int(max(1, round(self.part * self.training.epochs)))


class Functions(NamedTuple):
    """A user's functions; None = what the simulator does."""

    train: Callable[[Any, ClientData, Work], Any] | None = None
    """Trains a model in place on a client's data, and returns a `TrainReport` or the loss."""
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    """Outputs and targets of a batch -> the mean loss."""
    metric: Callable[[torch.Tensor, torch.Tensor], Any] | None = None
    """Outputs and targets of the whole test data -> a number."""

    def report(self, model: Any, data: ClientData, work: Work) -> TrainReport:
        """Call `train`, and return what it reports; raise InputError if that is no finite loss."""
        assert self.train is not None
        found = self.train(model, data, work)
        name = named(self.train)
        if isinstance(found, TrainReport):
            loss, steps = found
        elif isinstance(found, Mapping) and "loss" in found:
            loss, steps = found["loss"], found.get("steps", 1)
        else:
            loss, steps = found, 1
        loss = _number(
            loss, f"train function {name} must return the training loss, or TrainReport(loss=..., steps=...)"
        )
        if not isinstance(steps, int) or steps < 1:
            raise InputError(f"train function {name} reports steps={shortened(steps)}, but must report at least 1")
        return TrainReport(loss, steps)

    def measured(self, outputs: torch.Tensor, targets: torch.Tensor) -> float:
        """Return the metric; raise InputError if it is no number."""
        assert self.metric is not None
        value = _number(self.metric(outputs, targets), f"metric {named(self.metric)} must return a number")
        if not math.isfinite(value):
            raise InputError(f"metric {named(self.metric)} must return a finite number, but {value} came")
        return value


def _number(value: Any, what: str) -> float:
    """Return a number, or a tensor or array of one number, as a float."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    if not is_number(value):
        raise InputError(f"{what}, but {shortened(value)} came")
    return float(value)


def named(function: Any) -> str:
    """Return the name of a function for records; empty for None."""
    return "" if function is None else str(getattr(function, "__name__", type(function).__name__))


@dataclass(frozen=True)
class CustomModel:
    """A model with a user's functions. The fields describe them in records; create one with `with_functions`."""

    name: ClassVar[str] = "own"

    model: str
    train: str = ""
    loss: str = ""
    metric: str = ""

    def build(self, input_shape: tuple[int, ...], outputs: int, *, generator: torch.Generator) -> FeatureModel:
        """Return the model, with the functions as its attribute `functions`."""
        inner: ModelConfig = self.__dict__["inner"]
        made = inner.build(input_shape, outputs, generator=generator)
        made.functions = self.__dict__["functions"]
        return made


def with_functions(model: ModelConfig, functions: Functions) -> ModelConfig:
    """Return the model with a user's functions; raise InputError if one of them cannot be called."""
    for what, function in functions._asdict().items():
        if function is not None and not callable(function):
            raise InputError(f"{what} must be a function, but {shortened(function)} came")
    if functions == Functions():
        return model
    described = getattr(model, "module", model.name)
    found = CustomModel(str(described), *map(named, functions))
    found.__dict__.update(inner=model, functions=functions)
    return found


@dataclass(frozen=True)
class UserModel:
    """A user's torch module. The fields describe it in records; create one with `fedpace.models._modules.wrap`."""

    name: ClassVar[str] = "own"

    module: str
    head: str
    outputs: int
    parameters: int
    tokens: bool
    """Whether the inputs are integers, as for an embedding."""

    def build(self, input_shape: tuple[int, ...], outputs: int, *, generator: torch.Generator) -> FeatureModel:
        """Return a copy of the module, or a new one if the user gave a class or function."""
        from fedpace.models._modules import build_user_model

        return build_user_model(self, input_shape, generator)
