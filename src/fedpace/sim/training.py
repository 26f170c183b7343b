"""Options of local training (`Training`) and the result of one client's training (`LocalResult`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from fedpace._base.checks import above, at_least, between, one_of, real, whole
from fedpace._base.errors import FedpaceError, InputError
from fedpace.core.stepping import Vector

Arithmetic = Literal["torch", "numpy"]

LARGEST = 1e30
"""Largest step size and similar option: models have single precision, whose largest number is 3e38."""
WARM_UP = 2**31
"""Step number in the random streams of warm-up training, so that no round uses the same streams."""


class DivergedError(FedpaceError, ArithmeticError):
    """Training diverged: a loss or a parameter is no longer finite."""


@dataclass(frozen=True)
class Training:
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
    """

    epochs: int = 5
    batch: int = 32
    lr: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0
    algorithm: Literal["fedavg", "fedprox", "scaffold"] = "fedavg"
    mu: float = 0.01
    sketch: int = 256
    moment_samples: int = 100
    moment_rank: int = 0
    moment_epsilon: float = 0.0
    moment_delta: float = 1e-5
    moment_clip: float = 1.0
    arithmetic: Arithmetic | None = None

    def __post_init__(self) -> None:
        """Raise if an option is invalid."""
        at_least(self.epochs, 1, "epochs of training")
        at_least(self.batch, 0, "batch of training")
        above(self.lr, 0, "lr of training")
        at_least(self.weight_decay, 0, "weight_decay of training")
        at_least(self.moment_samples, 1, "moment_samples of training")
        whole(self.moment_rank, 0, "moment_rank of training")
        between(self.moment_epsilon, 0, LARGEST, "moment_epsilon of training")
        above(self.moment_delta, 0, "moment_delta of training")
        between(self.moment_delta, 0, 0.5, "moment_delta of training")
        above(self.moment_clip, 0, "moment_clip of training")
        between(self.moment_clip, 0, LARGEST, "moment_clip of training")
        at_least(self.sketch, 0, "sketch of training")
        at_least(self.mu, 0, "mu of training")
        for option in ("lr", "weight_decay", "mu"):
            between(getattr(self, option), 0, LARGEST, f"{option} of training")
        one_of(self.algorithm, ("fedavg", "fedprox", "scaffold"), "algorithm of training")
        one_of(self.arithmetic or "torch", get_args(Arithmetic), "arithmetic of training")
        if not 0 <= real(self.momentum, "momentum of training") < 1:
            raise InputError(f"momentum of training must lie in [0, 1), but {self.momentum} came")
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
    sound: bool = False
    """Whether all numbers have already been found finite."""

    def check(self, client: int, step: int, training: Training) -> None:
        """Raise `DivergedError` if the loss or a parameter is not finite."""
        if self.sound or (math.isfinite(self.loss) and np.isfinite(np.asarray(self.parameters)).all()):
            return
        when = "the warm-up" if step == WARM_UP else f"round {step + 1}"
        raise DivergedError(f"client {client} diverged in {when} (training loss {self.loss}): lower lr = {training.lr}")
