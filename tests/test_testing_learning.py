"""check_model and check_dataset accept what is ours, and name the rule that is broken."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedpace.data.digits import Digits
from fedpace.data.federated import FederatedData, Samples
from fedpace.data.quadratic import Quadratic
from fedpace.models.builtin import Conv2, Linear, Mlp, Resnet18, Softmax
from fedpace.models.contract import FeatureModel
from fedpace.testing import ContractError, check_dataset, check_model


@pytest.mark.parametrize(
    "data", [Digits(clients=5), Digits(clients=5, max_rotation=40), Quadratic(clients=4)], ids=repr
)
def test_our_data_sets_keep_the_rules(data):
    check_dataset(data)


@pytest.mark.parametrize(
    ("model", "shape", "outputs"),
    [
        (Softmax(), (5,), 3),
        (Linear(), (5,), 1),
        (Mlp(hidden=4, layers=2), (2, 3), 3),
        (Conv2(channels=(2, 3), hidden=4), (1, 20, 20), 3),
        (Resnet18(width=8), (3, 8, 8), 3),
        (nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 3)), (5,), 3),
        (lambda: nn.Linear(5, 1), (5,), 1),
    ],
    ids=["softmax", "linear", "mlp", "conv2", "resnet18", "own module", "own function"],
)
def test_models_keep_the_rules(model, shape, outputs):
    check_model(model, input_shape=shape, outputs=outputs)


class AlwaysDropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(5, 3)

    def forward(self, inputs):
        return self.out(functional.dropout(inputs, 0.5))


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.out, self.calls = nn.Linear(5, 3), 0

    def forward(self, inputs):
        self.calls += self.training
        return self.out(inputs * (1 + self.calls))


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(5, 3)

    def forward(self, inputs):
        outputs = self.out(inputs)
        return outputs.detach() + 0 * outputs


@pytest.mark.parametrize(
    ("model", "broken"),
    [
        (AlwaysDropping(), "training=self.training"),
        (nn.Sequential(nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, 3)), "must not depend on the batch"),
        (Remembering(), "remembers something that is no buffer"),
        (Detached(), "nothing has a gradient"),
        (nn.Linear(5, 4), r"expected \(6, 3\)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_modules_that_break_a_rule(model, broken):
    with pytest.raises(ContractError, match=broken):
        check_model(model, input_shape=(5,), outputs=3)


@dataclass(frozen=True)
class Config:
    """A model that is wrong in one way."""

    name: ClassVar[str] = "config"
    wrong: str = ""

    def build(self, input_shape, outputs, *, generator):
        if self.wrong == "global":
            return FeatureModel(nn.Flatten(), nn.Linear(5, 3))
        if self.wrong == "type":
            return nn.Linear(5, 3)
        module = Mlp(hidden=4).build(input_shape, outputs, generator=generator)
        if self.wrong == "features":
            module.features = lambda inputs: torch.zeros(len(inputs), 4)
        return module


@pytest.mark.parametrize(
    ("wrong", "broken"),
    [("global", "global generator"), ("type", "FeatureModel"), ("features", "head on the features")],
)
def test_configurations_that_break_a_rule(wrong, broken):
    check_model(Config(), input_shape=(5,), outputs=3)
    with pytest.raises(ContractError, match=broken):
        check_model(Config(wrong), input_shape=(5,), outputs=3)


@dataclass(frozen=True)
class Data:
    """A data set that is wrong in one way."""

    name: ClassVar[str] = "toy"
    metric: ClassVar[str] = "accuracy"
    wrong: str = ""

    def build(self, *, seed):
        count = 7 if self.wrong == "clients" and seed == 4 else 6
        rng = np.random.default_rng(None if self.wrong == "seed" else seed)
        dtype = np.float64 if self.wrong == "type" else np.float32

        def samples():
            inputs = rng.normal(size=(9, 3)).astype(dtype)
            return Samples(inputs, rng.integers(0, 5 if self.wrong == "labels" else 2, 9))

        data = FederatedData("toy", tuple(samples() for _ in range(count)), samples(), 2, "accuracy")
        return replace(data, metric="loss") if self.wrong == "metric" else data


@pytest.mark.parametrize(
    ("wrong", "broken"),
    [
        ("seed", "one seed gave two data sets"),
        ("clients", "another seed gave other clients"),
        ("type", "inputs are float64"),
        ("labels", r"classes lie in 0\.\.1"),
        ("metric", "its data have loss"),
    ],
)
def test_data_sets_that_break_a_rule(wrong, broken):
    check_dataset(Data())
    with pytest.raises(ContractError, match=broken):
        check_dataset(Data(wrong))
