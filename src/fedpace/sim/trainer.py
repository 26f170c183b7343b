"""`Trainer`: the clients' work in torch, that is local epochs of SGD and the measurements that clients report.

Local training is that of FedAvg (McMahan et al., AISTATS 2017). The model is in training mode while a client trains. It
is in evaluation mode for losses, gradients, moments and the test. Every random draw is keyed by (seed, step, client),
so a client's result depends neither on the rest of the cohort nor on the order of computation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray

from fedpace._base.checks import FloatArray
from fedpace._base.rng import stream
from fedpace.data.federated import FederatedData, Samples
from fedpace.models.base import ModelConfig
from fedpace.sim.flat import FlatModel, mean_buffers
from fedpace.sim.layers import linear_layers
from fedpace.sim.minibatches import batches
from fedpace.sim.stacked import Stacked
from fedpace.sim.trainers import AnyTrainer, TestScore
from fedpace.sim.training import DivergedError, LocalResult, Training

__all__ = ["DivergedError", "LocalResult", "TestScore", "Trainer", "Training"]


class Trainer(AnyTrainer):
    """The clients' data and one model instance, which all clients use in turn."""

    def __init__(self, data: FederatedData, model: ModelConfig, training: Training, *, seed: int) -> None:
        generator = torch.Generator().manual_seed(int(stream(seed, "model").integers(2**62)))
        module = model.build(data.input_shape, data.outputs, generator=generator)
        super().__init__(data, model, training, seed=seed)
        self._flat = FlatModel(module, classification=data.classes is not None)
        self._test = _tensors(data.test)
        self.initial = self._flat.vector()
        self._flat.check_batches(self.data, training.batch)
        layers = linear_layers(module, data.input_shape)
        self._stacked = None if layers is None else Stacked.of(layers, data, training, seed=seed)
        self._train = [_tensors(samples) for samples in data.train] if self._stacked is None else self._stacked.views()
        self.trainable = self._flat.trainable
        self.chunk = module.chunk
        self.moving_features = module.moving_features
        self.stackable = self._stacked is not None
        self.largest_part = 1 if self._stacked is None else self._stacked.largest_part

    def zeros(self, length: int, *, double: bool = False) -> torch.Tensor:
        """Return zeros."""
        return torch.zeros(length, dtype=torch.float64 if double else torch.float32)

    def table(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return a matrix with these vectors as rows."""
        return rows[0][None] if len(rows) == 1 else torch.stack(list(rows))

    def own(self, array: NDArray[np.generic]) -> torch.Tensor:
        """Return a copy of an array as a tensor."""
        return torch.from_numpy(array).clone()

    def buffers(self, parameters: torch.Tensor) -> torch.Tensor:
        """Return a copy of the buffers of a model vector, the entries after the trained ones."""
        return parameters[self.trainable :].clone()

    def next_model(
        self, stepped: torch.Tensor, before: torch.Tensor, buffers: Iterable[tuple[torch.Tensor, float]]
    ) -> torch.Tensor:
        """Return the model after a server step."""
        return torch.cat([stepped.to(before.dtype), mean_buffers(before[self.trainable :], self._flat.whole, buffers)])

    def to_bytes(self, tensors: Mapping[str, torch.Tensor]) -> bytes:
        """Serialize named tensors in the safetensors format."""
        found: bytes = safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()})
        return found

    def from_bytes(self, content: bytes) -> dict[str, torch.Tensor]:
        """Read what `to_bytes` wrote."""
        return dict(safetensors.torch.load(content))

    def named(self, parameters: torch.Tensor) -> dict[str, torch.Tensor]:
        """Split `parameters` into tensors, named as in the module."""
        self._flat.load(parameters)
        named = self._flat.module.tensors().items()
        return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in named}

    def parts(self, clients: Sequence[int]) -> list[tuple[int, ...]]:
        """Cut a cohort into parts that are computed at once; the same cohort is always cut in the same way."""
        return [(client,) for client in clients] if self._stacked is None else self._stacked.parts(clients)

    def train_many(
        self,
        parameters: torch.Tensor,
        clients: Sequence[int],
        step: int | Sequence[int],
        corrections: torch.Tensor | None = None,
    ) -> list[LocalResult]:
        """Train each of `clients` from `parameters`; row i of `corrections` is added to every gradient of client i.

        To train clients on different versions of the model together, pass one row of `parameters` and one `step` per
        client.
        """
        turns = [step] * len(clients) if isinstance(step, int) else step
        if self._stacked is not None:
            return self._stacked.train(parameters, clients, turns, corrections)
        received = parameters.expand(len(clients), -1) if parameters.ndim == 1 else parameters
        rows = [None] * len(clients) if corrections is None else list(corrections)
        return [self.train_alone(*each) for each in zip(received, clients, turns, rows, strict=True)]

    def gradients(self, parameters: torch.Tensor, clients: Sequence[int]) -> list[torch.Tensor]:
        """Return the clients' full-batch gradients at `parameters`."""
        if self._stacked is not None:
            return self._stacked.gradients(parameters, clients)
        return [self._gradient(parameters, client) for client in clients]

    def local_losses(
        self, parameters: torch.Tensor, clients: Sequence[int], *, samples: int = 0, step: int = 0
    ) -> list[float]:
        """Return the clients' training losses at `parameters`, on all data or on `samples` drawn with key `step`."""
        chosen = [self._probed(client, samples, step) for client in clients]
        if self._stacked is not None:
            return self._stacked.losses(parameters, clients, chosen)
        return [self._local_loss(parameters, client, rows) for client, rows in zip(clients, chosen, strict=True)]

    def train_alone(
        self, parameters: torch.Tensor, client: int, step: int, correction: torch.Tensor | None = None
    ) -> LocalResult:
        """Train one client without stacking, with torch's autograd; works for every model."""
        inputs, targets = self._train[client]
        options, flat = self.training, self._flat
        count = len(targets)
        rng = stream(self.seed, "train", step, client)
        flat.load(parameters)
        start, added = parameters[: flat.trainable], None if correction is None else correction[: flat.trainable]
        velocity = torch.zeros_like(flat.parameters) if options.momentum else None
        first_epoch, steps = 0.0, 0
        with flat.training(int(stream(self.seed, "noise", step, client).integers(2**62))):
            for epoch in range(options.epochs):
                for rows in batches(count, options.batch, rng, pairs=flat.pairs):
                    chosen = rows if isinstance(rows, slice) else torch.from_numpy(rows)
                    flat.gradients.zero_()
                    loss = flat.loss(inputs[chosen], targets[chosen])
                    loss.backward()  # type: ignore[no-untyped-call]
                    if epoch == 0:
                        first_epoch += loss.item() * len(targets[chosen]) / count
                    if options.algorithm == "fedprox":
                        flat.gradients.add_(flat.parameters - start, alpha=options.mu)
                    if added is not None:
                        flat.gradients.add_(added)
                    self._descend(velocity)
                    steps += 1
        result = LocalResult(flat.vector(), first_epoch, steps)
        result.check(client, step, options)
        return result

    def _descend(self, velocity: torch.Tensor | None) -> None:
        options, flat = self.training, self._flat
        gradient = flat.gradients
        if options.weight_decay:
            gradient.add_(flat.parameters, alpha=options.weight_decay)
        if velocity is not None:
            velocity.mul_(options.momentum).add_(gradient)
            gradient = velocity
        flat.parameters.sub_(gradient, alpha=options.lr)

    def _gradient(self, parameters: torch.Tensor, client: int) -> torch.Tensor:
        self._flat.load(parameters)
        self._flat.gradients.zero_()
        for inputs, targets, share in self._chunks(*self._train[client]):
            (share * self._flat.loss(inputs, targets)).backward()  # type: ignore[no-untyped-call]
        found = torch.zeros_like(parameters)  # buffers have no gradient
        found[: self._flat.trainable] = self._flat.gradients
        return found

    @torch.no_grad()
    def _local_loss(self, parameters: torch.Tensor, client: int, chosen: NDArray[np.int64] | None) -> float:
        self._flat.load(parameters)
        inputs, targets = self._train[client]
        if chosen is not None:
            rows = torch.from_numpy(chosen)
            inputs, targets = inputs[rows], targets[rows]
        return self._flat.loss(inputs, targets).item()

    @torch.no_grad()
    def moment(self, parameters: torch.Tensor, client: int, *, targets: bool = False) -> FloatArray:
        """Return a factor of the second moment of the client's features at `parameters`, computed from one batch.

        With `targets` it is the joint moment of the features and the one-hot labels (or regression targets).
        """
        self._flat.load(parameters)
        inputs, labels = self._train[client]
        if (chosen := self._measured(client)) is not None:
            batch = torch.from_numpy(chosen)
            inputs, labels = inputs[batch], labels[batch]
        features = self._flat.module.features(inputs).numpy().astype(np.float64)
        bias = getattr(self._flat.module.head, "bias", None) is not None
        return self._released(features, labels.numpy() if targets else None, parameters, client, bias=bias)

    @torch.no_grad()
    def score(self, parameters: torch.Tensor, chunk: int) -> TestScore:
        """Evaluate `parameters` on one chunk of the test data."""
        part = slice(chunk * self.chunk, (chunk + 1) * self.chunk)
        return self.judge(parameters, self._test[0][part], self._test[1][part])

    @torch.no_grad()
    def judge(self, parameters: torch.Tensor, inputs: torch.Tensor, targets: torch.Tensor) -> TestScore:
        """Evaluate `parameters` on the given samples."""
        self._flat.load(parameters)
        outputs = self._flat.module(inputs)
        correct = int((outputs.argmax(1) == targets).sum()) if self.data.classes is not None else 0
        return TestScore(len(targets), self._flat.criterion(outputs, targets).item() * len(targets), correct)

    @torch.no_grad()
    def correct(self, parameters: torch.Tensor, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return for each sample whether `parameters` predict its class correctly."""
        self._flat.load(parameters)
        parts = (slice(start, start + self.chunk) for start in range(0, len(targets), self.chunk))
        return torch.cat([self._flat.module(inputs[part]).argmax(1) == targets[part] for part in parts])

    def _chunks(
        self, inputs: torch.Tensor, targets: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, float]]:
        """Yield chunks that fit into memory, each with its share of the samples."""
        size = self._flat.module.chunk
        for start in range(0, len(targets), size):
            part = slice(start, start + size)
            yield inputs[part], targets[part], len(targets[part]) / len(targets)


def _tensors(samples: Samples) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(np.ascontiguousarray(samples.inputs)), torch.from_numpy(
        np.ascontiguousarray(samples.targets)
    )
