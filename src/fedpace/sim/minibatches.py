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
class Plan:
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
    starts = list(range(0, count, batch))
    if pairs and len(starts) > 1 and count - starts[-1] == 1:
        starts.pop()
    for start, end in zip(starts, [*starts[1:], count], strict=True):
        yield slice(start, end) if order is None else order[start:end]


def plan(
    seed: int,
    turns: Sequence[int],
    clients: Sequence[int],
    starts: IntArray,
    counts: IntArray,
    *,
    batch: int,
    epochs: int,
    width: int,
) -> Plan:
    """Return the minibatches of `clients`; client i owns `counts[i]` rows of the data from row `starts[i]` on.

    `turns` are the keys of the clients' random draws. `batch` = 0 means all of a client's samples. Only the order of
    the samples is random, so clients that use all samples in each step draw nothing.
    """
    own = np.minimum(batch or counts, counts)
    many = -(-counts // own)  # steps per epoch; the last may be short
    steps = epochs * many
    number = np.arange(steps[0])[:, None]
    taken = np.where((number + 1) % many == 0, counts - (many - 1) * own, own)
    taken[number >= steps] = 0
    rows = np.zeros((len(clients), steps[0], width), dtype=np.int64)
    shuffled: list[int] = np.flatnonzero(many > 1).tolist()
    keys = [(turns[position], clients[position]) for position in shuffled]
    # A client with several batches has full-width batches, so an epoch is one contiguous run of rows.
    runs, sizes, lengths = rows.reshape(len(clients), -1), counts.tolist(), (many * width).tolist()
    # One generator at a time: hundreds at once would trigger Python's garbage collector in every round.
    for position, generator in zip(shuffled, streams(seed, "train", last=keys), strict=True):
        size, length = sizes[position], lengths[position]
        for begin in range(0, epochs * length, length):
            runs[position, begin : begin + size] = generator.permutation(size)
    for position in np.flatnonzero(many == 1).tolist():
        rows[position, :, : sizes[position]] = np.arange(sizes[position])
    rows += starts[:, None, None]
    each = (1 / np.maximum(taken, 1)).astype(np.float32)
    weights = np.where(np.arange(width) < taken[..., None], each[..., None], np.float32(0))
    longest = int(many.max())
    return Plan(
        rows=rows,
        weights=weights,
        training=tuple((taken > 0).sum(1).tolist()),
        first_epoch=np.where(number[:longest] < many, taken[:longest] / counts, 0.0),
        steps=tuple(steps.tolist()),
        same=not shuffled,
    )
