"""The NumPy trainer, for models of linear layers with ReLU between them; it does not import torch.

It uses the same random draws as the torch trainer, also for the initial weights, so both agree up to rounding.

`NumpyStack` trains many clients at once: one batched matrix product per layer and step, in float32. Activations have
shape (units, clients, samples). Then products need no transposed copies, and the softmax runs over long contiguous
rows. The gradients of all layers share one array of the models' shape, so momentum, weight decay, FedProx and SCAFFOLD
are single operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from fedpace._base.checks import FloatArray
from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.core.server_rule import SingleArray
from fedpace.data.federated import FederatedData
from fedpace.models.contract import CHUNK, Dense, LinearLayers, ModelConfig
from fedpace.sim.stacking import Batch, ClientStack, Layer, layer_positions
from fedpace.sim.trainers import TestScore, Trainer
from fedpace.sim.training import BatchPlan, IntArray, LocalResult, Training

quiet = np.errstate(over="ignore", invalid="ignore", divide="ignore")
"""Silences NumPy's warnings, because `LocalResult.check` reports training that diverges."""


@dataclass(frozen=True, eq=False)
class NumpyStack(ClientStack):
    """Trains models that are rows of a NumPy array."""

    @staticmethod
    def _from_numpy(array: NDArray[Any]) -> NDArray[Any]:
        return array

    def _initial_models(self, parameters: SingleArray, positions: IntArray) -> SingleArray:
        return _repeated(parameters, len(positions)) if parameters.ndim == 1 else parameters[positions]

    @quiet
    def gradients(self, parameters: SingleArray, clients: Sequence[int]) -> list[SingleArray]:
        """Return the clients' full-batch gradients at `parameters`."""
        found = np.empty((len(clients), parameters.size), dtype=np.float32)
        for batch in self._padded_batches(clients, [None] * len(clients)):
            stack, inputs, targets = self._batch(parameters, batch)
            activations = forward(self.layers, stack, inputs)
            self._output_gradient(activations[-1], targets, batch.weights, with_loss=False)
            own = np.empty((len(batch.positions), parameters.size), dtype=np.float32)
            backward(self.layers, stack, activations, own)
            found[batch.positions] = own
        return list(found)

    @quiet
    def losses(self, parameters: SingleArray, clients: Sequence[int], chosen: Sequence[IntArray | None]) -> list[float]:
        """Return the clients' mean losses at `parameters` on the `chosen` samples of each; None = all samples."""
        found = np.empty(len(clients))
        for batch in self._padded_batches(clients, chosen):
            stack, inputs, targets = self._batch(parameters, batch)
            outputs = forward(self.layers, stack, inputs)[-1]
            found[batch.positions] = self._output_gradient(outputs, targets, batch.weights, with_loss=True)
        losses: list[float] = found.tolist()
        return losses

    def _batch(self, parameters: SingleArray, batch: Batch) -> tuple[SingleArray, SingleArray, NDArray[Any]]:
        """Return the models, inputs and targets of some clients."""
        inputs = self.inputs[batch.rows].transpose(2, 0, 1)
        return _repeated(parameters, len(batch.positions)), inputs, self.targets[batch.rows]

    @quiet
    def _train_stack(
        self, received: SingleArray, steps: BatchPlan, corrections: SingleArray | None
    ) -> list[LocalResult]:
        options = self.training
        stack = np.array(received, order="C")
        slopes = np.empty_like(stack)
        velocity = np.zeros_like(stack) if options.momentum else None
        losses = np.zeros(len(stack))
        buffer = np.empty((*steps.rows[:, 0].shape, self.inputs.shape[1]), dtype=np.float32)
        targets = self.targets[steps.rows[:, 0]]
        for number, active in enumerate(steps.training):
            models, gradient = stack[:active], slopes[:active]
            if number == 0 or not steps.same:
                rows = steps.rows[:active, number]
                # With any other mode NumPy would check the rows and copy the result once more.
                np.take(self.inputs, rows, axis=0, out=buffer[:active], mode="clip")
                targets = self.targets[rows]
            elif len(targets) > active:  # clients with less work have ended
                targets = targets[:active]
            activations = forward(self.layers, models, buffer[:active].transpose(2, 0, 1))
            first = number < len(steps.first_epoch)
            means = self._output_gradient(activations[-1], targets, steps.weights[number, :active], with_loss=first)
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
        return [LocalResult(row, loss, taken, checked=checked) for row, loss, taken, checked in ended]

    def _output_gradient(
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


class NumpyTrainer(Trainer):
    """The clients' data and a model of linear layers."""

    stackable = True
    chunk = CHUNK

    def __init__(self, data: FederatedData, model: ModelConfig, training: Training, *, seed: int) -> None:
        super().__init__(data, model, training, seed=seed)
        if not isinstance(model, LinearLayers):
            raise InputError(
                f"arithmetic numpy trains models of linear layers (linear, mlp, softmax), but {model.name} came: leave "
                "arithmetic out, and torch trains it"
            )
        if data.test.inputs.dtype != np.float32:
            raise InputError(f"{model.name} takes numbers in single precision, but {data.test.inputs.dtype} came")
        dense = model.dense(data.input_shape, data.outputs)
        self.initial: SingleArray = draw_initial_weights(dense, int(stream(seed, "model").integers(2**62)))
        self._layers = layer_positions(dense)
        self._stacked = NumpyStack.of(self._layers, data, training, seed=seed)
        self._starts = np.cumsum(self.counts) - self.counts
        self._test = data.test.inputs.reshape(len(data.test), -1)
        self.trainable = self.initial.size
        self.moving_features = len(dense) > 1
        self.max_part_clients = self._stacked.max_part_clients

    def named_tensors(self, parameters: SingleArray) -> dict[str, SingleArray]:
        """Split `parameters` into arrays with the names of the torch module, which also counts flatten and ReLU."""
        found: dict[str, SingleArray] = {}
        for depth, layer in enumerate(self._layers):
            place = "head" if layer is self._layers[-1] else f"body.{1 + 2 * depth}"
            found[f"{place}.weight"] = layer.weight(parameters[None])[0].copy()
            if layer.bias:
                found[f"{place}.bias"] = layer.offset(parameters[None])[0].copy()
        return found

    def zeros(self, length: int, *, double: bool = False) -> NDArray[Any]:
        """Return zeros."""
        return np.zeros(length, dtype=np.float64 if double else np.float32)

    def stack_rows(self, rows: Sequence[SingleArray]) -> SingleArray:
        """Return a matrix with these vectors as rows."""
        return np.stack(rows)

    def to_native(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return a copy of an array."""
        return array.copy()

    def buffers(self, parameters: SingleArray) -> SingleArray:
        """Return an empty vector: these models have no buffers."""
        return parameters[self.trainable :]

    def next_model(
        self, stepped: FloatArray, before: SingleArray, buffers: Iterable[tuple[SingleArray, float]]
    ) -> SingleArray:
        """Return the model after a server step."""
        return stepped.astype(before.dtype)

    def to_bytes(self, tensors: Mapping[str, NDArray[Any]]) -> bytes:
        """Serialize named arrays in the safetensors format."""
        whole = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
        found: bytes = safetensors.numpy.save(whole)
        return found

    def from_bytes(self, content: bytes) -> dict[str, NDArray[Any]]:
        """Read what `to_bytes` wrote."""
        return {name: array.copy() for name, array in safetensors.numpy.load(content).items()}

    def split_cohort(self, clients: Sequence[int]) -> list[tuple[int, ...]]:
        """Cut a cohort into parts that are computed at once; the same cohort is always cut in the same way."""
        return self._stacked.split_cohort(clients)

    def train_many(
        self,
        parameters: SingleArray,
        clients: Sequence[int],
        step: int | Sequence[int],
        corrections: SingleArray | None = None,
        work: Sequence[float] | None = None,
    ) -> list[LocalResult]:
        """Train each of `clients` from `parameters`."""
        turns = [step] * len(clients) if isinstance(step, int) else step
        return self._stacked.train(parameters, clients, turns, corrections, work)

    def gradients(self, parameters: SingleArray, clients: Sequence[int]) -> list[SingleArray]:
        """Return the clients' full-batch gradients at `parameters`."""
        return self._stacked.gradients(parameters, clients)

    def local_losses(
        self, parameters: SingleArray, clients: Sequence[int], *, samples: int = 0, step: int = 0
    ) -> list[float]:
        """Return the clients' training losses at `parameters`, on all data or on `samples` drawn with key `step`."""
        return self._stacked.losses(
            parameters, clients, [self._probe_rows(client, samples, step) for client in clients]
        )

    def moment(self, parameters: SingleArray, client: int, *, targets: bool = False) -> FloatArray:
        """Return a factor of the second moment of the client's features at `parameters`, computed from one batch."""
        chosen = self._moment_rows(client)
        rows = self._starts[client] + (np.arange(self.counts[client]) if chosen is None else chosen)
        features = self._activations(parameters, self._stacked.inputs[rows])[-2].astype(np.float64)
        labels = self._stacked.targets[rows] if targets else None
        return self._prepared_moment(features, labels, parameters, client, bias=self._layers[-1].bias)

    def score_chunk(self, parameters: SingleArray, chunk: int) -> TestScore:
        """Evaluate `parameters` on one chunk of the test data."""
        part = slice(chunk * self.chunk, (chunk + 1) * self.chunk)
        return self._score(parameters, self._test[part], self.data.test.targets[part])

    def score_samples(
        self, parameters: SingleArray, samples: Iterable[tuple[SingleArray, NDArray[Any]]]
    ) -> list[TestScore]:
        """Evaluate `parameters` on each batch of inputs and targets."""
        return [self._score(parameters, *batch) for batch in samples]

    @quiet
    def _score(self, parameters: SingleArray, inputs: SingleArray, targets: NDArray[Any]) -> TestScore:
        outputs = self._activations(parameters, inputs)[-1]
        if self.data.classes is None:
            loss = 0.5 * np.square(outputs[:, 0] - targets).sum(dtype=np.float64)
            return TestScore(len(targets), float(loss), 0)
        correct = int((outputs.argmax(1) == targets).sum())
        outputs -= outputs.max(1, keepdims=True)
        losses = np.log(np.exp(outputs).sum(1)) - outputs[np.arange(len(targets)), targets]
        return TestScore(len(targets), float(losses.sum(dtype=np.float64)), correct)

    def correct(self, parameters: SingleArray, inputs: SingleArray, targets: NDArray[Any]) -> NDArray[np.bool_]:
        """Return for each sample whether `parameters` predict its class correctly."""
        found: NDArray[np.bool_] = self._activations(parameters, inputs)[-1].argmax(1) == targets
        return found

    def _activations(self, parameters: SingleArray, inputs: SingleArray) -> list[SingleArray]:
        """Return the inputs of every layer and the outputs of the last, one row per sample."""
        found = [inputs.reshape(len(inputs), -1)]
        for layer in self._layers:
            outputs = found[-1] @ layer.weight(parameters[None])[0].T
            if layer.bias:
                outputs += layer.offset(parameters[None])[0]
            found.append(outputs if layer is self._layers[-1] else np.maximum(outputs, 0))
        return found


SEED_BITS = 32
DRAWN_BITS = 24


def draw_initial_weights(layers: Sequence[Dense], seed: int) -> SingleArray:
    """Return the initial flat parameter vector of `dense_model` with torch's generator of this seed, without torch.

    Both torch and NumPy have the Mersenne Twister of 1998. torch seeds it with the lower 32 bits of a seed, and
    computes a float32 from the lower 24 bits of each draw (`tests/models/test_drawing.py` compares the two).
    """
    generator = np.random.RandomState(seed % 2**SEED_BITS)
    return np.concatenate(
        [
            np.zeros(count, dtype=np.float32) if layer.zero else _uniform(generator, count, layer.inputs)
            for layer in layers
            for count in (layer.inputs * layer.outputs, layer.outputs if layer.bias else 0)
        ]
    )


def _uniform(generator: np.random.RandomState, count: int, inputs: int) -> SingleArray:
    """Return uniform draws between -1 / sqrt(inputs) and 1 / sqrt(inputs)."""
    raw = generator.randint(0, 2**32, size=count, dtype=np.uint32) % np.uint32(2**DRAWN_BITS)
    bound = np.float32(inputs**-0.5)
    return (raw.astype(np.float32) * np.float32(2.0**-DRAWN_BITS)) * (bound + bound) - bound
