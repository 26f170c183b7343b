"""`NumpyStacked` trains many clients at once in NumPy: one batched matrix product per layer and step, in float32.

Activations have shape (units, clients, samples). Then products need no transposed copies, and the softmax runs over
long contiguous rows. The gradients of all layers share one array of the models' shape, so momentum, weight decay,
FedProx and SCAFFOLD are single operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace.core.stepping import SingleArray
from fedpace.sim.linear import Layer
from fedpace.sim.minibatches import IntArray, Plan
from fedpace.sim.stacking import Batch, Stacking
from fedpace.sim.training import LocalResult

quiet = np.errstate(over="ignore", invalid="ignore", divide="ignore")
"""Silences NumPy's warnings, because `LocalResult.check` reports training that diverges."""


@dataclass(frozen=True, eq=False)
class NumpyStacked(Stacking):
    """Trains models that are rows of a NumPy array."""

    @staticmethod
    def _own(array: NDArray[Any]) -> NDArray[Any]:
        return array

    def _received(self, parameters: SingleArray, positions: IntArray) -> SingleArray:
        return _repeated(parameters, len(positions)) if parameters.ndim == 1 else parameters[positions]

    @quiet
    def gradients(self, parameters: SingleArray, clients: Sequence[int]) -> list[SingleArray]:
        """Return the clients' full-batch gradients at `parameters`."""
        found = np.empty((len(clients), parameters.size), dtype=np.float32)
        for batch in self._all_samples(clients, [None] * len(clients)):
            stack, inputs, targets = self._batch(parameters, batch)
            activations = forward(self.layers, stack, inputs)
            self._slopes(activations[-1], targets, batch.weights, with_loss=False)
            own = np.empty((len(batch.positions), parameters.size), dtype=np.float32)
            backward(self.layers, stack, activations, own)
            found[batch.positions] = own
        return list(found)

    @quiet
    def losses(self, parameters: SingleArray, clients: Sequence[int], chosen: Sequence[IntArray | None]) -> list[float]:
        """Return the clients' mean losses at `parameters` on the `chosen` samples of each; None = all samples."""
        found = np.empty(len(clients))
        for batch in self._all_samples(clients, chosen):
            stack, inputs, targets = self._batch(parameters, batch)
            outputs = forward(self.layers, stack, inputs)[-1]
            found[batch.positions] = self._slopes(outputs, targets, batch.weights, with_loss=True)
        losses: list[float] = found.tolist()
        return losses

    def _batch(self, parameters: SingleArray, batch: Batch) -> tuple[SingleArray, SingleArray, NDArray[Any]]:
        """Return the models, inputs and targets of some clients."""
        inputs = self.inputs[batch.rows].transpose(2, 0, 1)
        return _repeated(parameters, len(batch.positions)), inputs, self.targets[batch.rows]

    @quiet
    def _train_stack(self, received: SingleArray, steps: Plan, corrections: SingleArray | None) -> list[LocalResult]:
        options = self.training
        stack = np.array(received, order="C")
        slopes = np.empty_like(stack)
        velocity = np.zeros_like(stack) if options.momentum else None
        losses = np.zeros(len(stack))
        room = np.empty((*steps.rows[:, 0].shape, self.inputs.shape[1]), dtype=np.float32)
        targets = self.targets[steps.rows[:, 0]]
        for number, active in enumerate(steps.training):
            models, gradient = stack[:active], slopes[:active]
            if number == 0 or not steps.same:
                rows = steps.rows[:active, number]
                # With any other mode NumPy would check the rows and copy the result once more.
                np.take(self.inputs, rows, axis=0, out=room[:active], mode="clip")
                targets = self.targets[rows]
            activations = forward(self.layers, models, room[:active].transpose(2, 0, 1))
            first = number < len(steps.first_epoch)
            means = self._slopes(activations[-1], targets, steps.weights[number, :active], with_loss=first)
            if first:
                losses[:active] += means * steps.first_epoch[number, :active]
            backward(self.layers, models, activations, gradient)
            if options.algorithm == "fedprox":
                gradient += options.mu * (models - received[:active])
            if corrections is not None:
                gradient += corrections[:active]
            if options.weight_decay:
                gradient += options.weight_decay * models
            if velocity is not None:
                velocity[:active] *= options.momentum
                velocity[:active] += gradient
                gradient = velocity[:active]
            models -= options.lr * gradient
        finite = np.isfinite(losses + stack.sum(1)).tolist()
        ended = zip(stack, losses.tolist(), steps.steps, finite, strict=True)
        return [LocalResult(row, loss, taken, sound=sound) for row, loss, taken, sound in ended]

    def _slopes(
        self, outputs: SingleArray, targets: NDArray[Any], weights: SingleArray, *, with_loss: bool
    ) -> SingleArray:
        """Replace `outputs` by the gradient of the weighted loss; with `with_loss` return each client's loss."""
        losses = np.empty(0, dtype=np.float32)
        if not self.classification:
            outputs -= targets
            if with_loss:
                losses = (np.square(outputs[0]) * weights).sum(1) * np.float32(0.5)
            outputs *= weights
            return losses
        flat, where = outputs.reshape(-1), targets * targets.size + np.arange(targets.size).reshape(targets.shape)
        outputs -= outputs.max(0)
        own = flat[where] if with_loss else losses
        np.exp(outputs, out=outputs)
        total = outputs.sum(0)
        if with_loss:
            losses = ((np.log(total) - own) * weights).sum(1)
        outputs *= weights / total
        flat[where] -= weights
        return losses


def forward(layers: Sequence[Layer], stack: SingleArray, inputs: SingleArray) -> list[SingleArray]:
    """Return the inputs of every layer and the outputs of the last, each (units, clients, samples)."""
    activations = [inputs]
    for layer in layers:
        outputs = np.empty((layer.outputs, *inputs.shape[1:]), dtype=np.float32)
        np.matmul(layer.weight(stack), activations[-1].transpose(1, 0, 2), out=outputs.transpose(1, 0, 2))
        if layer.bias:
            outputs += layer.offset(stack).T[:, :, None]
        if layer is not layers[-1]:
            np.maximum(outputs, 0, out=outputs)
        activations.append(outputs)
    return activations


def backward(
    layers: Sequence[Layer], stack: SingleArray, activations: list[SingleArray], gradient: SingleArray
) -> None:
    """Fill `gradient`, one row per client, by backpropagation.

    `activations` come from `forward`, with the last entry replaced by the gradient of the loss by the outputs.
    """
    slopes = activations[-1]
    for depth in range(len(layers) - 1, -1, -1):
        layer, inputs = layers[depth], activations[depth]
        own = slopes.transpose(1, 0, 2)
        np.matmul(own, inputs.transpose(1, 2, 0), out=layer.weight(gradient))
        if layer.bias:
            np.einsum("uks->ku", slopes, out=layer.offset(gradient))
        if depth:
            slopes = np.empty_like(inputs)
            np.matmul(layer.weight(stack).transpose(0, 2, 1), own, out=slopes.transpose(1, 0, 2))
            slopes *= inputs > 0


def _repeated(parameters: SingleArray, clients: int) -> SingleArray:
    return np.broadcast_to(parameters, (clients, parameters.size))
