"""Which samples clients learn from in which of their steps, as arrays for many clients at once."""

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
    """The steps of clients, those with the most steps first.

    A batch that is shorter than `width` is filled up with the client's own first sample, at no weight.
    """

    rows: IntArray
    """(clients, steps, width): rows of the data of all clients."""
    weights: NDArray[np.float32]
    """(steps, clients, width): what each sample weighs in the step, 1 / batch size or 0."""
    training: tuple[int, ...]
    """Clients that take each of the steps: the first so many of the stack."""
    first_epoch: FloatArray
    """(steps of the longest first epoch, clients): what the step's mean loss weighs in that of the epoch."""
    steps: tuple[int, ...]
    """Steps of each client."""
    same: bool
    """Whether every step is made of the same samples: all of them."""


def batches(count: int, batch: int, rng: np.random.Generator, *, pairs: bool = False) -> Iterator[slice | IntArray]:
    """Yield the samples of each step of one client's epoch; `batch` = 0 stands for all of them.

    With `pairs` a last batch of one sample joins the batch before it: a batch norm knows no variance of one.
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
    """Return the minibatches of `clients`, which own `counts` rows of the data from `starts` on.

    `turns` names each client's draws. `batch` = 0 stands for all of a client's samples. Only the order of samples is
    random, so who trains on all of them in each step draws nothing.
    """
    own = np.minimum(batch or counts, counts)
    many = -(-counts // own)  # steps in an epoch, of which the last may be short
    steps = epochs * many
    number = np.arange(steps[0])[:, None]
    taken = np.where((number + 1) % many == 0, counts - (many - 1) * own, own)
    taken[number >= steps] = 0
    rows = np.zeros((len(clients), steps[0], width), dtype=np.int64)
    shuffled: list[int] = np.flatnonzero(many > 1).tolist()
    keys = [(turns[position], clients[position]) for position in shuffled]
    # Who has several batches has whole ones, of the full width: an epoch is one run of rows.
    runs, sizes, lengths = rows.reshape(len(clients), -1), counts.tolist(), (many * width).tolist()
    # One at a time: hundreds of generators that live at once would have Python look for garbage in every round.
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
