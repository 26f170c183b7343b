"""Clients, test data and a module, as a user would hand them over."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import fedpace

RNG = np.random.default_rng(0)
TRUTH = RNG.normal(size=(4, 3))


def draw(count, shift=0.0):
    X = RNG.normal(size=(count, 4)) + shift
    return X, (X @ TRUTH).argmax(1)


CLIENTS = [draw(12 + client, shift=0.3 * client) for client in range(6)]
TEST = draw(60)


class Net(nn.Module):
    """A forward pass that no `nn.Sequential` has, with dropout and a batch norm."""

    def __init__(self, outputs=3):
        super().__init__()
        self.inner = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, outputs)

    def forward(self, inputs):
        hidden = functional.dropout(self.norm(torch.relu(self.inner(inputs))), 0.2, training=self.training)
        return self.last(hidden)


def compare(clients=CLIENTS, test=TEST, model=Net, **options):
    options = {"schemes": ["random(k=3)", "pace"], "delays": "lognormal", "rounds": 3, "seeds": 2} | options
    return fedpace.compare(clients, test, model, progress=False, **options)
