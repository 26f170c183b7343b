"""`SpeedGroups` evaluates the shared model on the data of fast and of slow clients, to show whether a scheme is fair.

A scheme that avoids slow clients may reach its target early at their cost. Clients are split into ten groups by
expected delay. The evaluation uses the group's own test data if the data set assigns test data to clients, and its
training data otherwise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.rng import stream
from fedpace.core.server_rule import Vector
from fedpace.data.federated import FederatedData
from fedpace.sim.engines.threads import one_thread
from fedpace.sim.trainers import Trainer

GROUPS = 10
MAX_GROUP_SAMPLES = 200
"""Most samples per group, drawn once: enough to tell schemes apart, and cheap compared with a round."""


class SpeedGroups:
    """Groups of clients by speed, with samples of their data.

    Args:
        trainer: the model and the data.
        delays: expected delay of each client in seconds.
    """

    def __init__(self, trainer: Trainer, delays: FloatArray) -> None:
        self._trainer = trainer
        order = np.argsort(delays, kind="stable")
        groups = np.array_split(order, min(GROUPS, order.size))
        found = [_samples(trainer.data, group, seed=trainer.seed) for group in groups]
        self._samples = [tuple(map(trainer.to_native, samples)) for samples in found]
        self._sizes = np.array([len(targets) for _, targets in found])
        # Linear layers compute each row independently, so all groups can be evaluated at once.
        self._all_groups: tuple[Vector, ...] | None = None
        if trainer.stackable and trainer.data.metric != "loss":
            self._all_groups = tuple(trainer.to_native(np.concatenate(parts)) for parts in zip(*found, strict=True))

    def evaluate(self, parameters: Vector) -> tuple[float, ...]:
        """Return the metric on each group's samples, fastest group first."""
        with one_thread():
            if self._all_groups is None:
                return tuple(round(self._evaluate_group(parameters, *samples), 6) for samples in self._samples)
            correct = np.asarray(self._trainer.correct(parameters, *self._all_groups))
            counts = np.add.reduceat(correct, np.cumsum(self._sizes) - self._sizes, dtype=np.int64)
            return tuple(
                round(count / size, 6) for count, size in zip(counts.tolist(), self._sizes.tolist(), strict=True)
            )

    def _evaluate_group(self, parameters: Vector, inputs: Vector, targets: Vector) -> float:
        chunk = self._trainer.chunk
        parts = (slice(start, start + chunk) for start in range(0, len(targets), chunk))
        return self._trainer.total_score(
            self._trainer.score_samples(parameters, inputs[part], targets[part]) for part in parts
        )[0]


def _samples(data: FederatedData, group: IntArray, *, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return up to `MAX_GROUP_SAMPLES` samples of a group of clients, each sample with the same probability."""
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
    if total > MAX_GROUP_SAMPLES:
        chosen = np.sort(stream(seed, "speeds", int(group[0])).choice(total, MAX_GROUP_SAMPLES, replace=False))
    before = np.cumsum(sizes) - sizes
    holder = np.searchsorted(before, chosen, side="right") - 1
    rows = starts[holder] + chosen - before[holder]
    inputs = np.stack([own[client].inputs[row] for client, row in zip(holder, rows, strict=True)])
    targets = np.stack([own[client].targets[row] for client, row in zip(holder, rows, strict=True)])
    return inputs, targets
