"""Local training: its options (`Training`), its minibatches (`plan`), and the result for one client (`LocalResult`)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import FloatArray, shortened
from fedpace._base.errors import FedpaceError, InputError
from fedpace._base.options import Above, AtLeast, Between, Options
from fedpace._base.rng import streams
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


IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """The minibatches of a stack of clients, sorted by number of steps, most first.

    Batches shorter than `width` are padded with the client's first sample, at weight 0.
    """

    rows: IntArray
    """(clients, steps, width): row numbers in the data of all clients."""
    weights: NDArray[np.float32]
    """(steps, clients, width): weight of each sample in the step, 1 / batch size or 0."""
    training: tuple[int, ...]
    """Number of clients that still train in each step; they are the first ones of the stack."""
    first_epoch: FloatArray
    """(steps of the longest first epoch, clients): weight of the step's mean loss in the epoch's mean loss."""
    steps: tuple[int, ...]
    """Number of steps of each client."""
    same: bool
    """Whether every step uses all samples of the client."""


def batches(count: int, batch: int, rng: np.random.Generator, *, pairs: bool = False) -> Iterator[slice | IntArray]:
    """Yield the sample numbers of each step of one epoch of one client; `batch` = 0 means all samples.

    With `pairs`, a last batch of one sample joins the batch before it, because a batch norm needs two samples.
    """
    batch = batch or count
    order = rng.permutation(count) if batch < count else None
    for start, end in _spans(count, batch, pairs):
        yield slice(start, end) if order is None else order[start:end]


def _spans(count: int, batch: int, pairs: bool) -> Iterator[tuple[int, int]]:
    """Return the first and the last position of each batch of an epoch."""
    starts = list(range(0, count, batch))
    if pairs and len(starts) > 1 and count - starts[-1] == 1:
        starts.pop()
    return zip(starts, [*starts[1:], count], strict=True)


def steps_of_work(count: int, batch: int, epochs: int, work: float, *, pairs: bool = False) -> int:
    """Return the local steps of one client with `count` samples; arguments as for `batches` and `local_steps`."""
    per_epoch = sum(1 for _ in _spans(count, batch or count, pairs))
    return int(local_steps(np.array([per_epoch]), epochs, None if work == 1 else np.array([work]))[0])


def local_steps(per_epoch: IntArray, epochs: int, work: FloatArray | None = None) -> IntArray:
    """Return the local steps of clients with `per_epoch` steps per epoch: `work` times `epochs` epochs, at least 1."""
    steps = epochs * per_epoch
    if work is None:
        return steps
    return np.maximum(1, np.rint(work * steps)).astype(np.int64)


def plan_batches(
    seed: int,
    turns: Sequence[int],
    clients: Sequence[int],
    starts: IntArray,
    counts: IntArray,
    *,
    batch: int,
    epochs: int,
    width: int,
    work: FloatArray | None = None,
) -> BatchPlan:
    """Return the minibatches of `clients`; client i owns `counts[i]` rows of the data from row `starts[i]` on.

    `turns` are the keys of the clients' random draws. `batch` = 0 means all of a client's samples. Only the order of
    the samples is random, so clients that use all samples in each step draw nothing. `work` are multiples of `epochs`
    in units of steps (`local_steps`); clients must come sorted by number of steps, most first.
    """
    own = np.minimum(batch or counts, counts)
    many = -(-counts // own)  # steps per epoch; the last may be short
    steps = local_steps(many, epochs, work)
    number = np.arange(steps[0])[:, None]
    taken = np.where((number + 1) % many == 0, counts - (many - 1) * own, own)
    taken[number >= steps] = 0
    rows = np.zeros((len(clients), steps[0], width), dtype=np.int64)
    shuffled: list[int] = np.flatnonzero(many > 1).tolist()
    keys = [(turns[position], clients[position]) for position in shuffled]
    # A client with several batches has full-width batches, so an epoch is one contiguous run of rows.
    runs, sizes, lengths = rows.reshape(len(clients), -1), counts.tolist(), (many * width).tolist()
    ends: list[int] = (steps * width).tolist()
    # One generator at a time: hundreds at once would trigger Python's garbage collector in every round.
    for position, generator in zip(shuffled, streams(seed, "train", last=keys), strict=True):
        size, length, last = sizes[position], lengths[position], ends[position]
        for begin in range(0, last - length + 1, length):
            runs[position, begin : begin + size] = generator.permutation(size)
        if rest := last % length:  # a part of an epoch, without its last batch
            runs[position, last - rest : last] = generator.permutation(size)[:rest]
    for position in np.flatnonzero(many == 1).tolist():
        rows[position, :, : sizes[position]] = np.arange(sizes[position])
    rows += starts[:, None, None]
    each = (1 / np.maximum(taken, 1)).astype(np.float32)
    weights = np.where(np.arange(width) < taken[..., None], each[..., None], np.float32(0))
    longest = int(many.max())
    first_epoch = np.where(number[:longest] < many, taken[:longest] / counts, 0.0)
    if (partial := steps < many).any():  # the mean over the samples that were used
        first_epoch[:, partial] /= first_epoch[:, partial].sum(0)
    return BatchPlan(
        rows=rows,
        weights=weights,
        training=tuple((taken > 0).sum(1).tolist()),
        first_epoch=first_epoch,
        steps=tuple(steps.tolist()),
        same=not shuffled,
    )
