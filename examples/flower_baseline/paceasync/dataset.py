"""Handwritten digits, split over the nodes with a Dirichlet label mix, and the delays of the nodes."""

from __future__ import annotations

from functools import lru_cache

import torch

from fedpace.data.digits import Digits
from fedpace.data.federated import FederatedData
from fedpace.delays.lognormal import LognormalDelays

BYTES = 10_000
"""Size of a model on the network, for the delays."""


@lru_cache(maxsize=2)
def partitions(count: int, alpha: float, seed: int) -> FederatedData:
    """Return the images of all nodes, and the test images."""
    return Digits(clients=count, alpha=alpha).build(seed=seed)


def node_images(node: int, count: int, alpha: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and labels of one node."""
    samples = partitions(count, alpha, seed).train[node]
    return torch.from_numpy(samples.inputs), torch.from_numpy(samples.targets)


def test_images(count: int, alpha: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and labels of the test set."""
    samples = partitions(count, alpha, seed).test
    return torch.from_numpy(samples.inputs), torch.from_numpy(samples.targets)


def seconds(node: int, count: int, seed: int, step: int) -> float:
    """Return how long a node takes for a task: log-normal, with a long tail."""
    return float(LognormalDelays().build(count, model_bytes=BYTES, seed=seed).draw(step)[node])
