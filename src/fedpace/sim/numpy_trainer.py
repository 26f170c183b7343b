"""`NumpyTrainer`: the clients' work in NumPy, for models of linear layers with ReLU between them, without torch.

It uses the same random draws as `Trainer`, also for the initial weights, so both agree up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from fedpace._base.checks import FloatArray
from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.core.stepping import SingleArray
from fedpace.data.federated import FederatedData
from fedpace.models._drawing import drawn
from fedpace.models.base import CHUNK, LinearLayers, ModelConfig
from fedpace.sim.linear import lay_out
from fedpace.sim.numpy_stacked import NumpyStacked, quiet
from fedpace.sim.trainers import AnyTrainer, TestScore
from fedpace.sim.training import LocalResult, Training


class NumpyTrainer(AnyTrainer):
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
        self.initial: SingleArray = drawn(dense, int(stream(seed, "model").integers(2**62)))
        self._layers = lay_out(dense)
        self._stacked = NumpyStacked.of(self._layers, data, training, seed=seed)
        self._starts = np.cumsum(self._counts) - self._counts
        self._test = data.test.inputs.reshape(len(data.test), -1)
        self.trainable = self.initial.size
        self.moving_features = len(dense) > 1
        self.largest_part = self._stacked.largest_part

    def named(self, parameters: SingleArray) -> dict[str, SingleArray]:
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

    def table(self, rows: Sequence[SingleArray]) -> SingleArray:
        """Return a matrix with these vectors as rows."""
        return np.stack(rows)

    def own(self, array: NDArray[Any]) -> NDArray[Any]:
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

    def parts(self, clients: Sequence[int]) -> list[tuple[int, ...]]:
        """Cut a cohort into parts that are computed at once; the same cohort is always cut in the same way."""
        return self._stacked.parts(clients)

    def train_many(
        self,
        parameters: SingleArray,
        clients: Sequence[int],
        step: int | Sequence[int],
        corrections: SingleArray | None = None,
    ) -> list[LocalResult]:
        """Train each of `clients` from `parameters`."""
        turns = [step] * len(clients) if isinstance(step, int) else step
        return self._stacked.train(parameters, clients, turns, corrections)

    def gradients(self, parameters: SingleArray, clients: Sequence[int]) -> list[SingleArray]:
        """Return the clients' full-batch gradients at `parameters`."""
        return self._stacked.gradients(parameters, clients)

    def local_losses(
        self, parameters: SingleArray, clients: Sequence[int], *, samples: int = 0, step: int = 0
    ) -> list[float]:
        """Return the clients' training losses at `parameters`, on all data or on `samples` drawn with key `step`."""
        return self._stacked.losses(parameters, clients, [self._probed(client, samples, step) for client in clients])

    def moment(self, parameters: SingleArray, client: int, *, targets: bool = False) -> FloatArray:
        """Return a factor of the second moment of the client's features at `parameters`, computed from one batch."""
        chosen = self._measured(client)
        rows = self._starts[client] + (np.arange(self.samples(client)) if chosen is None else chosen)
        features = self._activations(parameters, self._stacked.inputs[rows])[-2].astype(np.float64)
        labels = self._stacked.targets[rows] if targets else None
        return self._released(features, labels, parameters, client, bias=self._layers[-1].bias)

    def score(self, parameters: SingleArray, chunk: int) -> TestScore:
        """Evaluate `parameters` on one chunk of the test data."""
        part = slice(chunk * self.chunk, (chunk + 1) * self.chunk)
        return self.judge(parameters, self._test[part], self.data.test.targets[part])

    @quiet
    def judge(self, parameters: SingleArray, inputs: SingleArray, targets: NDArray[Any]) -> TestScore:
        """Evaluate `parameters` on the given samples."""
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
