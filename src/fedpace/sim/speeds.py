"""How the shared model serves the fast clients and the slow: judged on what each tenth of them holds.

A scheme that avoids slow clients is soon at its target, and may be so at their cost. Tenths are by the clients'
expected delays. A client's own test data are used where the data set says whose they are, and else what it trains on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.rng import stream
from fedpace.core.stepping import Vector
from fedpace.data.federated import FederatedData
from fedpace.sim.engines.threads import one_thread
from fedpace.sim.trainers import AnyTrainer

GROUPS = 10
MOST = 200
"""Samples of a group, drawn once: enough to tell schemes apart, and a small part of what a round costs."""


class Speeds:
    """Groups of clients by speed, with samples of what they hold.

    Args:
        trainer: the model and the data.
        delays: expected seconds of each client.
    """

    def __init__(self, trainer: AnyTrainer, delays: FloatArray) -> None:
        self._trainer = trainer
        order = np.argsort(delays, kind="stable")
        groups = np.array_split(order, min(GROUPS, order.size))
        found = [_samples(trainer.data, group, seed=trainer.seed) for group in groups]
        self._samples = [tuple(map(trainer.own, samples)) for samples in found]
        self._sizes = np.array([len(targets) for _, targets in found])
        # Linear layers treat each row alike, however many there are: all groups can be judged at once.
        self._together: tuple[Vector, ...] | None = None
        if trainer.stackable and trainer.data.metric != "loss":
            self._together = tuple(trainer.own(np.concatenate(parts)) for parts in zip(*found, strict=True))

    def judge(self, parameters: Vector) -> tuple[float, ...]:
        """Return the metric on each group's samples, fastest first."""
        with one_thread():
            if self._together is None:
                return tuple(round(self._judge(parameters, *samples), 6) for samples in self._samples)
            correct = np.asarray(self._trainer.correct(parameters, *self._together))
            counts = np.add.reduceat(correct, np.cumsum(self._sizes) - self._sizes, dtype=np.int64)
            return tuple(
                round(count / size, 6) for count, size in zip(counts.tolist(), self._sizes.tolist(), strict=True)
            )

    def _judge(self, parameters: Vector, inputs: Vector, targets: Vector) -> float:
        chunk = self._trainer.chunk
        parts = (slice(start, start + chunk) for start in range(0, len(targets), chunk))
        return self._trainer.total(self._trainer.judge(parameters, inputs[part], targets[part]) for part in parts)[0]


def _samples(data: FederatedData, group: IntArray, *, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return some of what a group of clients holds, each sample as likely as any other."""
    ends = None if data.test_sizes is None else np.cumsum(data.test_sizes)
    if ends is not None and any(data.test_sizes[client] for client in group):  # type: ignore[index]
        own = [data.test] * group.size
        starts = ends[group] - np.array(data.test_sizes)[group]
        sizes = np.array(data.test_sizes)[group]
    else:
        own = [data.train[client] for client in group]
        starts, sizes = np.zeros(group.size, dtype=np.int64), np.array([len(samples) for samples in own])
    total = int(sizes.sum())
    chosen = np.arange(total)
    if total > MOST:
        chosen = np.sort(stream(seed, "speeds", int(group[0])).choice(total, MOST, replace=False))
    before = np.cumsum(sizes) - sizes
    holder = np.searchsorted(before, chosen, side="right") - 1
    rows = starts[holder] + chosen - before[holder]
    inputs = np.stack([own[client].inputs[row] for client, row in zip(holder, rows, strict=True)])
    targets = np.stack([own[client].targets[row] for client, row in zip(holder, rows, strict=True)])
    return inputs, targets
