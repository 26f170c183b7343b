"""The client that the plain loops and Flower share: the model in PyTorch's own layers, and local epochs of SGD."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from workload import Options, Workload, load

CHUNK = 500
"""Test samples in one forward pass."""


@cache
def loaded(folder: str) -> Workload:
    """Return the workload, mapped once in a process, which from now on uses one thread."""
    torch.set_num_threads(1)
    return load(Path(folder))


def build_model(workload: Workload, *, channels_last: bool = False) -> nn.Sequential:
    """Return the model with the workload's initial parameters."""
    inputs, outputs = int(np.prod(workload.test_inputs.shape[1:])), int(workload.test_targets.max()) + 1
    layers: list[nn.Module]
    match workload.options.model:
        case "conv2":
            layers = [nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2)]
            layers += [nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, outputs)]
        case "mlp":
            layers = [nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, outputs)]
        case "softmax":
            layers = [nn.Linear(inputs, outputs)]
        case unknown:
            raise ValueError(f"no model is called {unknown!r}")
    model = nn.Sequential(*layers)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    set_parameters(model, torch.from_numpy(np.array(workload.initial)))
    return model


@torch.no_grad()
def set_parameters(model: nn.Module, flat: torch.Tensor) -> None:
    """Copy a flat vector into the model."""
    start = 0
    for parameter in model.parameters():
        parameter.copy_(flat[start : start + parameter.numel()].view(parameter.shape))
        start += parameter.numel()


@torch.no_grad()
def add_parameters(total: torch.Tensor, model: nn.Module, weight: float) -> None:
    """Add the model's parameters, times `weight`, to a flat vector."""
    start = 0
    for parameter in model.parameters():
        total[start : start + parameter.numel()].add_(parameter.reshape(-1), alpha=weight)
        start += parameter.numel()


def samples(workload: Workload, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a client's inputs and targets."""
    part = workload.client(client)
    return torch.from_numpy(np.array(workload.inputs[part])), torch.from_numpy(np.array(workload.targets[part]))


def train(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, options: Options, *, seed: int) -> float:
    """Train the model where it stands and return the mean loss over the first epoch."""
    optimiser = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=options.momentum)
    generator = torch.Generator().manual_seed(seed)
    losses: list[torch.Tensor] = []
    for epoch in range(options.epochs):
        for batch in torch.randperm(len(targets), generator=generator).split(options.batch):
            optimiser.zero_grad()
            loss = functional.cross_entropy(model(inputs[batch]), targets[batch])
            loss.backward()
            optimiser.step()
            if epoch == 0:
                losses.append(loss.detach() * len(batch))
    return float(torch.stack(losses).sum()) / len(targets)


@torch.no_grad()
def correct(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> int:
    """Return how many test samples the model has right."""
    pieces: Iterator[tuple[torch.Tensor, torch.Tensor]] = zip(inputs.split(CHUNK), targets.split(CHUNK), strict=True)
    return sum(int((model(some).argmax(1) == truth).sum()) for some, truth in pieces)
