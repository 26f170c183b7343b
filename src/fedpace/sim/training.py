"""Options of local training (`Training`) and the result of one client's training (`LocalResult`)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from fedpace._base.checks import shortened
from fedpace._base.errors import FedpaceError, InputError
from fedpace._base.options import Above, AtLeast, Between, Options
from fedpace.core.server_rule import Vector

Arithmetic = Literal["torch", "numpy"]

DEVICES = r"auto|cpu|cuda(:\d{1,3})?|mps"
"""What the option `device` may be."""
TORCH = "take arithmetic torch (--arithmetic torch)"
"""What to do where NumPy cannot compute as asked."""
MAX_OPTION = 1e30
"""Largest step size and similar option: models have single precision, whose largest number is 3e38."""
MAX_LOSS_GROWTH = 1000.0
"""A run has diverged when its test loss is this many times that of the initial model."""
WARM_UP_STEP = 2**31
"""Step number in the random streams of warm-up training, so that no round uses the same streams."""


class DivergedError(FedpaceError, ArithmeticError):
    """Training diverged: a loss or a parameter is no longer finite, or the loss is far above its first value."""


@dataclass(frozen=True)
class Training(Options):
    """How clients train.

    Args:
        epochs: passes over the client's data per round (E in the paper).
        batch: samples per SGD step; 0 = all of the client's data.
        lr: step size of SGD.
        momentum: of SGD; the velocity starts at 0 in every round.
        weight_decay: of SGD.
        algorithm: `fedavg`, `fedprox` or `scaffold`.
        mu: weight of FedProx's proximal term, which pulls towards the received model.
        sketch: entries of the update sketches that clients report to schemes that need them; 0 = whole updates.
        moment_samples: samples in the one batch from which a client computes its feature moment, as in the paper.
        moment_rank: leading directions of a moment that are sent; 0 = all.
        moment_epsilon: epsilon of the Gaussian mechanism that makes each sent moment (epsilon, delta)-differentially
            private for one sample of the batch (docs/privacy.md); 0 = no noise.
        moment_delta: delta of that mechanism.
        moment_clip: largest norm of a row of features, including the 1 of a bias and the targets. Longer rows are
            scaled down before noise is added.
        arithmetic: the library that trains. `torch` (the default) trains every model. `numpy` trains models of linear
            layers with ReLU between them (linear, softmax, mlp). It is faster, needs no torch, and gives the same
            results up to rounding.
        device: where torch trains: `cpu` (the default), `cuda`, `cuda:1`, `mps`, or `auto`, which takes a GPU if there
            is one. With `cuda`, worker processes share all GPUs in turn.
        precision: of forward and backward passes on a GPU: `float32` (the default), `bfloat16` or `float16`. Weights
            and steps stay in float32.
    """

    options_of: ClassVar[str] = "training"

    epochs: Annotated[int, AtLeast(1)] = 5
    batch: Annotated[int, AtLeast(0)] = 32
    lr: Annotated[float, Above(0), Between(0, MAX_OPTION)] = 0.05
    momentum: Annotated[float, Between(0, 1, "[)")] = 0.0
    weight_decay: Annotated[float, AtLeast(0), Between(0, MAX_OPTION)] = 0.0
    algorithm: Literal["fedavg", "fedprox", "scaffold"] = "fedavg"
    mu: Annotated[float, Between(0, MAX_OPTION)] = 0.01
    sketch: Annotated[int, AtLeast(0)] = 256
    moment_samples: Annotated[int, AtLeast(1)] = 100
    moment_rank: Annotated[int, AtLeast(0)] = 0
    moment_epsilon: Annotated[float, Between(0, MAX_OPTION)] = 0.0
    moment_delta: Annotated[float, Between(0, 0.5, "(]")] = 1e-5
    moment_clip: Annotated[float, Between(0, MAX_OPTION, "(]")] = 1.0
    arithmetic: Arithmetic | None = None
    device: str | None = None
    precision: Literal["float32", "bfloat16", "float16"] | None = None

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        super().__post_init__()
        if self.device is not None and not re.fullmatch(DEVICES, self.device):
            raise InputError(f"device must be auto, cpu, cuda, cuda:1 or mps, but {shortened(self.device)} came")
        if self.arithmetic == "numpy" and self.device not in (None, "auto", "cpu"):
            raise InputError(f"arithmetic numpy computes on the CPU, but device = {self.device!r} came: {TORCH}")
        if self.arithmetic == "numpy" and self.precision not in (None, "float32"):
            raise InputError(f"arithmetic numpy computes in float32, but precision = {self.precision!r} came: {TORCH}")
        if self.algorithm == "scaffold" and self.momentum:
            raise InputError("scaffold is defined for plain SGD: set momentum = 0")


@dataclass(frozen=True, eq=False)
class LocalResult:
    """The result of one client's local training."""

    parameters: Vector
    loss: float
    """Mean loss over the first local epoch; each sample's loss is taken just before the step that uses it."""
    steps: int
    """SGD steps taken."""
    checked: bool = False
    """Whether all numbers have already been found finite."""

    def check(self, client: int, step: int, training: Training) -> None:
        """Raise `DivergedError` if the loss or a parameter is not finite."""
        if self.checked or (math.isfinite(self.loss) and np.isfinite(np.asarray(self.parameters)).all()):
            return
        when = "the warm-up" if step == WARM_UP_STEP else f"round {step + 1}"
        raise DivergedError(f"client {client} diverged in {when} (training loss {self.loss}): lower lr = {training.lr}")
