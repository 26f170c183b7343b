"""The model, and how a client trains and tests it."""

from __future__ import annotations

import torch
from torch import nn


class Net(nn.Module):
    """A perceptron for images of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 32)
        self.classifier = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return self.classifier(torch.relu(self.hidden(x)))


def initial_model(seed: int) -> Net:
    """Return the model that every run with this seed starts from."""
    torch.manual_seed(seed)
    return Net()


def train(net: Net, x: torch.Tensor, y: torch.Tensor, *, epochs: int, batch: int, lr: float, seed: int) -> float:
    """Train in place; return the mean loss of the last epoch."""
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.SGD(net.parameters(), lr=lr)
    total = 0.0
    for _ in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(y), generator=generator).split(batch):
            loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += float(loss.detach()) * len(rows) / len(y)
    return total


@torch.no_grad()
def accuracy(net: Net, x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the share of images that are recognised."""
    return float((net(x).argmax(dim=1) == y).float().mean())
