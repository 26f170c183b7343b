"""Softmax regression in NumPy, so that a node's process starts quickly: a task's time is its sleep and Flower's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
CLASSES, WIDTH = 10, 65
NODES, FASTEST, SLOWEST = 12, 0.2, 20.0


def write(folder: Path, seed: int) -> Path:
    """Write everybody's digits, the test images and the nodes' delays; return the file."""
    from fedpace.data.digits import Digits

    data = Digits(clients=NODES, alpha=0.3).build(seed=seed)
    tables: dict[str, Any] = {"delays": np.random.default_rng(seed).permutation(np.geomspace(FASTEST, SLOWEST, NODES))}
    for name, samples in [("test", data.test), *((str(i), samples) for i, samples in enumerate(data.train))]:
        rows = samples.inputs.reshape(len(samples.targets), -1)
        tables[f"x-{name}"] = np.hstack([rows, np.ones((len(rows), 1))])  # the 1 is the bias's feature
        tables[f"y-{name}"] = samples.targets
    path = folder / f"digits-{seed}.npz"
    np.savez(path, **tables)
    return path


def read(path: str, part: str) -> tuple[Floats, NDArray[np.int64]]:
    """Return the images and labels of a node, or the test ones."""
    with np.load(path, allow_pickle=False) as tables:
        return tables[f"x-{part}"], tables[f"y-{part}"]


def delay(path: str, part: str) -> float:
    """Return the seconds that a node sleeps."""
    with np.load(path, allow_pickle=False) as tables:
        return float(tables["delays"][int(part)])


def train(model: Floats, x: Floats, y: NDArray[np.int64], *, lr: float, epochs: int, seed: int) -> tuple[Floats, float]:
    """Return the model after local SGD on mini-batches, and the loss at the beginning."""
    rng, model, before = np.random.default_rng(seed), model.copy(), loss(model, x, y)
    for _ in range(epochs):
        for batch in np.array_split(rng.permutation(len(y)), max(1, len(y) // 16)):
            model -= lr * x[batch].T @ (_softmax(x[batch] @ model) - np.eye(CLASSES)[y[batch]]) / len(batch)
    return model, before


def loss(model: Floats, x: Floats, y: NDArray[np.int64]) -> float:
    """Return the mean cross-entropy."""
    return float(-np.log(_softmax(x @ model)[np.arange(len(y)), y] + 1e-12).mean())


def accuracy(model: Floats, x: Floats, y: NDArray[np.int64]) -> float:
    """Return the share of images that are recognised."""
    return float((np.argmax(x @ model, axis=1) == y).mean())


def _softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
