"""How clients train, and what comes out of it."""

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
"""Of a step size and its like: models are of single precision, which ends at 3e38."""
WARM_UP = 2**31
"""Stands for the step in the streams of warm-up training, so that it shares none with a round."""


class DivergedError(FedpaceError, ArithmeticError):
    """Training left the finite numbers."""


@dataclass(frozen=True)
class Training:
    """How clients train.

    Args:
        epochs: passes over the client's data in a round (E of the paper).
        batch: samples in a step; 0 = all of the client's data.
        lr: step size.
        momentum: of SGD, starting at 0 in every round.
        weight_decay: of SGD.
        algorithm: `fedavg`, `fedprox` or `scaffold`.
        mu: weight of FedProx's pull towards the received model.
        sketch: entries of the update sketches that are reported to schemes that need them; 0 = whole updates.
        moment_samples: samples in the one batch from which a client computes its feature moment, as in the paper.
        moment_rank: leading directions of a moment that are sent; 0 = all.
        moment_epsilon: each moment is released (epsilon, delta)-differentially private for one sample of the batch, by
            the Gaussian mechanism (docs/privacy.md); 0 = as it is.
        moment_delta: see there.
        moment_clip: longest row of features, with the 1 of a bias and the targets behind them, that is kept as it is.
        arithmetic: what computes it. `torch` trains every model, and is taken where nothing is said; `numpy` trains
            those of linear layers with ReLU between them (linear, softmax, mlp), the same but for rounding, needs no
            torch, and is faster.
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
        """Refuse options that make no sense."""
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
    """What came out of one client's round."""

    parameters: Vector
    loss: float
    """Mean loss over the first local epoch: each sample's loss just before it was learnt from."""
    steps: int
    """SGD steps taken."""
    sound: bool = False
    """Whether all numbers are known to be finite."""

    def check(self, client: int, step: int, training: Training) -> None:
        """Raise if training has diverged."""
        if self.sound or (math.isfinite(self.loss) and np.isfinite(np.asarray(self.parameters)).all()):
            return
        when = "the warm-up" if step == WARM_UP else f"round {step + 1}"
        raise DivergedError(f"client {client} diverged in {when} (training loss {self.loss}): lower lr = {training.lr}")
