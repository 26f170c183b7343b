"""The model, the data of a partition, training and testing: what any Flower app has."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import nn

from fedpace.data.digits import Digits
from fedpace.data.federated import FederatedData
from fedpace.delays.lognormal import LognormalDelays
from fedpace.delays.synthetic import SyntheticDelays

MODELS = {"lognormal": LognormalDelays, "synthetic": SyntheticDelays}
"""Delay models to choose from."""


class Net(nn.Module):
    """One hidden layer; `classifier` is the layer whose input the mod measures."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 32)
        self.classifier = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return self.classifier(torch.relu(self.hidden(x)))


def initial_model(seed: int) -> Net:
    """Return the model that every run under `seed` begins with."""
    torch.manual_seed(seed)
    return Net()


@lru_cache(maxsize=2)
def load(partitions: int, seed: int) -> FederatedData:
    """Return the digits, split over `partitions` clients with a Dirichlet label mix."""
    return Digits(clients=partitions, alpha=2.0).build(seed=seed)


def train(net: Net, x: torch.Tensor, y: torch.Tensor, *, epochs: int, lr: float, seed: int) -> float:
    """Train in place; return the mean loss of the first epoch."""
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.SGD(net.parameters(), lr=lr)
    first = 0.0
    for epoch in range(epochs):
        for batch in torch.randperm(len(y), generator=generator).split(16):
            loss = nn.functional.cross_entropy(net(x[batch]), y[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if epoch == 0:
                first += float(loss.detach()) * len(batch) / len(y)
    return first


def seconds_of(delays: str, clients: int, seed: int, step: int) -> list[float]:
    """Return the seconds that each client takes in a step, by one of fedpace's delay models."""
    kind = MODELS[delays]
    return [float(seconds) for seconds in kind().build(clients, model_bytes=10_000, seed=seed).draw(step)]


@torch.no_grad()
def accuracy(net: Net, x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the share of images that are recognised."""
    return float((net(x).argmax(dim=1) == y).float().mean())
