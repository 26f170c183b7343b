"""Minibatches: which samples each client uses in each SGD step, for one client or for many at once (`plan`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import FloatArray
from fedpace._base.rng import streams

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
