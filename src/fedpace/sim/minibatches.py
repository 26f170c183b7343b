"""Which samples clients learn from in which of their steps, as arrays for many clients at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedpace.core.rng import streams

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Plan:
    """The steps of clients, those with the most steps first.

    A batch that is shorter than `width` is filled up with the client's own first sample, at no weight.
    """

    rows: torch.Tensor
    """(steps, clients, width): rows of the data of all clients."""
    weights: torch.Tensor
    """(steps, clients, width, 1): what each sample weighs in the step, 1 / batch size or 0."""
    training: tuple[int, ...]
    """Clients that take each of the steps: the first so many of the stack."""
    first_epoch: torch.Tensor
    """(steps of the longest first epoch, clients): what the step's mean loss weighs in that of the epoch."""
    steps: tuple[int, ...]
    """Steps of each client."""
    same: bool
    """Whether every step is made of the same samples: all of them."""


def plan(
    seed: int,
    step: int,
    clients: Sequence[int],
    starts: IntArray,
    counts: IntArray,
    *,
    batch: int,
    epochs: int,
    width: int,
) -> Plan:
    """Return the minibatches of `clients`, which own `counts` rows of the data from `starts` on.

    `batch` = 0 stands for all of a client's samples. Only the order of samples is random, so who trains on all of them
    in each step draws nothing.
    """
    sizes = [_batch_sizes(int(count), batch) for count in counts]
    steps = tuple(epochs * len(own) for own in sizes)
    together, longest = len(clients), steps[0]
    rows = np.empty((longest, together, width), dtype=np.int64)
    rows[:] = starts[:, None]
    taken = np.zeros((longest, together), dtype=np.int64)
    first_epoch = np.zeros((max(len(own) for own in sizes), together))
    shuffled = [position for position, own in enumerate(sizes) if len(own) > 1]
    generators = dict(zip(shuffled, streams(seed, "train", step, last=[clients[i] for i in shuffled]), strict=True))
    for position, own in enumerate(sizes):
        count, many = int(counts[position]), len(own)
        taken[: steps[position], position] = np.tile(own, epochs)
        first_epoch[:many, position] = own / count
        order = np.zeros((epochs, many * int(own[0])), dtype=np.int64)
        generator = generators.get(position)
        for epoch in range(epochs):
            order[epoch, :count] = np.arange(count) if generator is None else generator.permutation(count)
        rows[: steps[position], position, : own[0]] += order.reshape(steps[position], own[0])
    weights = (np.arange(width) < taken[..., None]) / np.maximum(taken, 1)[..., None]
    return Plan(
        rows=torch.from_numpy(rows),
        weights=torch.from_numpy(weights.astype(np.float32)).unsqueeze(3),
        training=tuple((taken > 0).sum(1).tolist()),
        first_epoch=torch.from_numpy(first_epoch),
        steps=steps,
        same=not shuffled,
    )


def _batch_sizes(count: int, batch: int) -> IntArray:
    """Samples in each step of an epoch: the last may be short."""
    batch = min(batch or count, count)
    whole, rest = divmod(count, batch)
    return np.array([batch] * whole + [rest] * (rest > 0), dtype=np.int64)
