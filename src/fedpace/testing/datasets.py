"""`check_dataset` checks that a data set meets the simulator's assumptions.

check_dataset(MyData())
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from fedpace.data.federated import DataConfig, FederatedData, Samples
from fedpace.testing.selectors import rule


def check_dataset(config: DataConfig) -> None:
    """Raise a ContractError if a data set breaks a rule of the contract."""
    name = getattr(config, "name", None)
    rule(isinstance(name, str) and bool(name), f"{type(config).__name__} must have a name")
    check_options(config)
    one, two, other = config.build(seed=3), config.build(seed=3), config.build(seed=4)
    rule(isinstance(one, FederatedData), f"{name}: build(seed=...) must return FederatedData")
    rule(one.metric == config.metric, f"{name} says its metric is {config.metric}, but its data have {one.metric}")
    rule(
        (one.classes is None) == (one.metric == "loss"),
        f"{name}: data with classes are judged by accuracy, others by loss",
    )
    for what, samples in [("the test data", one.test), *((f"client {c}", s) for c, s in enumerate(one.train))]:
        _check_samples(f"{name}: {what}", samples, one)
    same = all(_equal(a, b) for a, b in zip((*one.train, one.test), (*two.train, two.test), strict=True))
    rule(same, f"{name}: one seed gave two data sets: draw everything from fedpace.stream(seed, ...)")
    rule(
        (one.clients, one.input_shape, one.classes) == (other.clients, other.input_shape, other.classes),
        f"{name}: another seed gave other clients, inputs or classes: schemes could not be compared over seeds",
    )


def check_options(config: Any) -> None:
    """Raise a ContractError if a component is not a frozen dataclass, whose fields are its options."""
    cls = type(config)
    frozen = getattr(getattr(cls, "__dataclass_params__", None), "frozen", False)
    rule(
        dataclasses.is_dataclass(config) and bool(frozen),
        f"{cls.__name__} must be a frozen dataclass: its fields are its options",
    )


def _check_samples(what: str, samples: Samples, data: FederatedData) -> None:
    rule(samples.inputs.shape[1:] == data.input_shape, f"{what} has inputs of shape {samples.inputs.shape[1:]}")
    wanted = np.float32 if data.classes is None else np.int64
    rule(samples.targets.dtype == wanted, f"{what}: targets are {samples.targets.dtype}, expected {np.dtype(wanted)}")
    rule(
        samples.inputs.dtype == np.float32 or np.issubdtype(samples.inputs.dtype, np.integer),
        f"{what}: inputs are {samples.inputs.dtype}, expected float32, or whole numbers for an embedding",
    )
    if data.classes is not None:
        labels = samples.targets
        rule(
            bool(labels.min() >= 0 and labels.max() < data.classes),
            f"{what}: classes lie in 0..{data.classes - 1}, but {labels.min()}..{labels.max()} came",
        )


def _equal(one: Samples, other: Samples) -> bool:
    return np.array_equal(one.inputs, other.inputs) and np.array_equal(one.targets, other.targets)
