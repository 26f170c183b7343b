"""`Learning`: a real model, trained on devices whose data are drawn from their group when they train.

Each group has a mix of classes. A device that is admitted draws its own mix around that of its group and its samples
from a pool of real data, such as the digits. Nothing is kept about a device. All devices that were sent the same
version of the model are trained at once, in NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace._base import registry
from fedpace._base.checks import FloatArray, IntArray, above, finite, float_array, whole
from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.core.server_rule import SingleArray
from fedpace.data.federated import FederatedData
from fedpace.models.contract import LinearLayers
from fedpace.sim.numpy_trainer import backward, draw_initial_weights, forward
from fedpace.sim.stacking import Layer, layer_positions

STACK = 256
"""Devices that are trained at once."""


@dataclass(frozen=True, eq=False)
class Learning:
    """What is learnt, from which data and how.

    Args:
        mixes: group -> weight of each class in its data.
        data: registered name of a data set with classes.
        data_options: options of the data set.
        model: registered name of a model of linear layers: softmax or mlp.
        model_options: options of the model.
        samples: samples per device.
        device_alpha: concentration of a device's mix around that of its group; small = few classes per device.
        epochs: passes over a device's samples.
        batch: samples per local step.
        lr: local step size.
        seed: for the pool, the initial model and the devices' samples.
    """

    mixes: Mapping[str, Sequence[float]]
    data: str = "digits"
    data_options: Mapping[str, Any] = field(default_factory=lambda: {"clients": 1})
    model: str = "softmax"
    model_options: Mapping[str, Any] = field(default_factory=dict)
    samples: int = 20
    device_alpha: float = 5.0
    epochs: int = 1
    batch: int = 10
    lr: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        for name in ("samples", "epochs", "batch"):
            whole(getattr(self, name), 1, f"{name} of a population")
        for name in ("device_alpha", "lr"):
            finite(getattr(self, name), f"{name} of a population")
            above(getattr(self, name), 0, f"{name} of a population")


class Trainer:
    """The pool of data, the model, and the training of devices of given groups.

    Args:
        learning: what is learnt.
        names: the groups, in the order of their rows.
    """

    def __init__(self, learning: Learning, names: Sequence[str]) -> None:
        self.learning = learning
        data: FederatedData = registry.datasets.make(learning.data, **learning.data_options).build(seed=learning.seed)
        model = registry.models.make(learning.model, **learning.model_options)
        if data.classes is None or not isinstance(model, LinearLayers):
            raise InputError(
                f"a population learns classes with a model of linear layers (softmax, mlp), but {learning.data} and "
                f"{learning.model} came"
            )
        self.mixes = _mixes(learning.mixes, names, data.classes)
        targets = np.concatenate([samples.targets for samples in data.train]).astype(np.int64)
        order = np.argsort(targets, kind="stable")
        inputs = np.concatenate([samples.inputs for samples in data.train]).reshape(targets.size, -1)
        self._inputs: SingleArray = np.ascontiguousarray(inputs[order], dtype=np.float32)
        self._counts = np.bincount(targets, minlength=data.classes)
        if (self._counts == 0).any():
            raise InputError(f"{learning.data} has no training samples of class {int(np.argmin(self._counts))}")
        self._first = np.cumsum(self._counts) - self._counts
        self._test = np.asarray(data.test.inputs, dtype=np.float32).reshape(len(data.test), -1)
        self._test_targets = data.test.targets.astype(np.int64)
        self._test_counts = np.bincount(self._test_targets, minlength=data.classes)
        dense = model.dense(data.input_shape, data.classes)
        self._layers: tuple[Layer, ...] = layer_positions(dense)
        self.initial: SingleArray = draw_initial_weights(dense, int(stream(learning.seed, "model").integers(2**62)))

    def updates(self, model: SingleArray, groups: IntArray, rng: np.random.Generator) -> SingleArray:
        """(devices, parameters) the updates of new devices of these groups, trained from `model`."""
        found = np.empty((groups.size, model.size), dtype=np.float32)
        for start in range(0, groups.size, STACK):
            part = slice(start, start + STACK)
            found[part] = self._train(model, groups[part], rng)
        return found

    def class_accuracy(self, model: NDArray[Any]) -> FloatArray:
        """(classes,) accuracy on the test samples of each class."""
        single = np.asarray(model, dtype=np.float32)[None]
        outputs = forward(self._layers, single, self._test.T[:, None, :])[-1][:, 0]
        right = np.bincount(self._test_targets[outputs.argmax(0) == self._test_targets], minlength=self.mixes.shape[1])
        return right / np.maximum(self._test_counts, 1)

    def group_accuracy(self, model: NDArray[Any]) -> FloatArray:
        """(groups,) accuracy on data with each group's mix of classes."""
        return self.mixes @ self.class_accuracy(model)

    def _train(self, model: SingleArray, groups: IntArray, rng: np.random.Generator) -> SingleArray:
        options = self.learning
        labels, rows = self._samples(groups, rng)
        devices = np.arange(groups.size)[:, None]
        stack = np.repeat(model[None], groups.size, axis=0)
        gradient = np.empty_like(stack)
        for _ in range(options.epochs):
            order = rng.permuted(np.broadcast_to(np.arange(options.samples), labels.shape), axis=1)
            for start in range(0, options.samples, options.batch):
                chosen = order[:, start : start + options.batch]
                targets = labels[devices, chosen]
                activations = forward(self._layers, stack, self._inputs[rows[devices, chosen]].transpose(2, 0, 1))
                _softmax_slopes(activations[-1], targets)
                backward(self._layers, stack, activations, gradient)
                stack -= np.float32(options.lr) * gradient
        return stack - model

    def _samples(self, groups: IntArray, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Return labels and rows of the pool, (devices, samples) each, for new devices of these groups."""
        mixes = rng.standard_gamma(self.learning.device_alpha * self.mixes[groups] + 1e-12)
        bounds = np.cumsum(mixes, axis=1)
        drawn_at = rng.random((groups.size, self.learning.samples)) * bounds[:, -1:]
        labels = (drawn_at[:, :, None] >= bounds[:, None, :-1]).sum(2)
        counts = self._counts[labels]
        return labels, self._first[labels] + (rng.random(labels.shape) * counts).astype(np.int64)


def _softmax_slopes(outputs: SingleArray, targets: IntArray) -> None:
    """Replace outputs (classes, devices, samples) by the gradient of the mean cross-entropy."""
    outputs -= outputs.max(0)
    np.exp(outputs, out=outputs)
    outputs /= outputs.sum(0)
    devices, samples = np.indices(targets.shape)
    outputs[targets, devices, samples] -= 1
    outputs /= np.float32(targets.shape[1])


def _mixes(given: Mapping[str, Sequence[float]], names: Sequence[str], classes: int) -> FloatArray:
    if missing := [name for name in names if name not in given]:
        raise InputError(f"mixes must say which classes each group holds, but {missing[0]!r} is missing")
    table = np.array([float_array(given[name], f"the mix of {name}") for name in names])
    if table.shape[1:] != (classes,) or (table < 0).any() or not (table.sum(1) > 0).all():
        raise InputError(f"a mix is {classes} weights of at least 0 that are not all 0, but {table.shape[1:]} came")
    return np.asarray(table / table.sum(1, keepdims=True))
