"""The torch trainer: local epochs of SGD and the measurements that clients report, for every model.

Local training is that of FedAvg (McMahan et al., AISTATS 2017). The model is in training mode while a client trains. It
is in evaluation mode for losses, gradients, moments and the test. Every random draw is keyed by (seed, step, client),
so a client's result depends neither on the rest of the cohort nor on the order of computation.

Small models of linear layers with ReLU are trained many clients at once (`TorchStack`): their models are stacked, and
each layer is one batched matrix product. The last bits of some models depend on the other clients in the stack, because
the matrix kernels depend on memory alignment. So stacks are cut by the cohort alone, independently of the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import nn

from fedpace._base.checks import FloatArray
from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.data.federated import FederatedData, Samples
from fedpace.models._modules import FeatureModel, WrappedModel
from fedpace.models.contract import ModelConfig
from fedpace.models.custom import ClientData, Functions, Work
from fedpace.sim.flat import LOSS_SCALE, FlatModel, autocast, check_precision, described, gpus, mean_buffers, resolve
from fedpace.sim.stacking import Batch, ClientStack, Layer
from fedpace.sim.trainers import TestScore, Trainer
from fedpace.sim.training import BatchPlan, DivergedError, IntArray, LocalResult, Training, batches, steps_of_work

STACKABLE_PARAMETERS = 200_000
"""Largest number of parameters for which clients are stacked; larger models are fast enough one by one."""


def linear_layers(module: FeatureModel, input_shape: tuple[int, ...] = ()) -> tuple[Layer, ...] | None:
    """Return the layers of a model of linear layers with ReLU between them; None for any other model.

    `input_shape` is the shape of one sample. Without an `nn.Flatten` the model must take flat samples.
    """
    if type(module) is FeatureModel:
        body = list(module.body) if isinstance(module.body, nn.Sequential) else [module.body]
        parts = [*body, module.head]
    elif type(module) is WrappedModel and type(module.body) is nn.Sequential:
        parts = list(module.body)
    else:
        return None
    if type(parts[0]) is nn.Flatten and (parts[0].start_dim, parts[0].end_dim) == (1, -1):
        parts = parts[1:]
    elif len(input_shape) != 1:
        return None
    if len(parts) % 2 == 0 or any(type(part) is not nn.ReLU for part in parts[1::2]) or module.head is not parts[-1]:
        return None
    layers: list[Layer] = []
    for part in parts[::2]:
        # Hooks (as of weight norm) and frozen weights (as in fine-tuning) change what the layer computes.
        if type(part) is not nn.Linear or part._forward_pre_hooks or part._forward_hooks:
            return None
        if not all(parameter.requires_grad for parameter in part.parameters()):
            return None
        start = layers[-1].end if layers else 0
        layers.append(Layer(part.out_features, part.in_features, start, part.bias is not None))
    shared = sum(parameter.numel() for parameter in module.parameters()) != layers[-1].end
    return None if shared or layers[-1].end > STACKABLE_PARAMETERS else tuple(layers)


@dataclass(frozen=True, eq=False)
class TorchStack(ClientStack):
    """Trains models that are rows of a torch tensor."""

    @staticmethod
    def _from_numpy(array: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array)

    def _initial_models(self, parameters: torch.Tensor, positions: IntArray) -> torch.Tensor:
        return parameters.expand(len(positions), -1) if parameters.ndim == 1 else parameters[positions]

    def views(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return each client's inputs and targets."""
        sizes = self.counts.tolist()
        return list(zip(torch.split(self.inputs, sizes), torch.split(self.targets, sizes), strict=True))

    @torch.no_grad()
    def gradients(self, parameters: torch.Tensor, clients: Sequence[int]) -> list[torch.Tensor]:
        """Return the clients' full-batch gradients at `parameters`."""
        found = torch.empty(len(clients), parameters.numel())
        for batch in self._padded_batches(clients, [None] * len(clients)):
            positions, inputs, targets, weights = self._batch(batch)
            stack = parameters.expand(len(positions), -1)
            activations = self._forward(stack, inputs)
            slopes, _ = self._output_gradient(activations[-1], targets, weights, with_loss=False)
            for layer, weight, offset in self._backward(stack, activations, slopes):
                layer.weight(found)[positions] = weight
                if offset is not None:
                    layer.offset(found)[positions] = offset
        return list(found)

    @torch.no_grad()
    def losses(
        self, parameters: torch.Tensor, clients: Sequence[int], chosen: Sequence[IntArray | None]
    ) -> list[float]:
        """Return the clients' mean losses at `parameters` on the `chosen` samples of each; None = all samples."""
        found = [0.0] * len(clients)
        for batch in self._padded_batches(clients, chosen):
            positions, inputs, targets, weights = self._batch(batch)
            outputs = self._forward(parameters.expand(len(positions), -1), inputs)[-1]
            _, losses = self._output_gradient(outputs, targets, weights, with_loss=True)
            for position, loss in zip(positions, losses.tolist(), strict=True):
                found[position] = loss
        return found

    def _batch(self, batch: Batch) -> tuple[list[int], torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return positions with their inputs, targets and weights."""
        inputs, targets = self._samples_at(torch.from_numpy(batch.rows))
        return batch.positions, inputs, targets, torch.from_numpy(batch.weights).unsqueeze(2)

    def _samples_at(self, rows: torch.Tensor, buffer: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the samples at `rows`; `buffer`, inputs that are no longer needed, is overwritten to save memory."""
        flat = rows.reshape(-1)
        if buffer is None:
            inputs = self.inputs.index_select(0, flat).view(*rows.shape, -1)
        else:
            inputs = buffer[: len(rows)]
            torch.index_select(self.inputs, 0, flat, out=inputs.view(flat.numel(), -1))
        return inputs, self.targets.index_select(0, flat).view(*rows.shape, 1)

    @torch.no_grad()
    def _train_stack(
        self, received: torch.Tensor, steps: BatchPlan, corrections: torch.Tensor | None
    ) -> list[LocalResult]:
        options = self.training
        rows, weights = torch.from_numpy(steps.rows), torch.from_numpy(steps.weights).unsqueeze(3)
        first_epoch = torch.from_numpy(steps.first_epoch)
        stack = received.clone(memory_format=torch.contiguous_format)
        velocity = torch.zeros_like(stack) if options.momentum else None
        losses = torch.zeros(len(steps.steps), dtype=torch.float64)
        inputs, targets = self._samples_at(rows[:, 0])
        for number, active in enumerate(steps.training):
            if number and not steps.same:
                inputs, targets = self._samples_at(rows[:active, number], inputs)
            elif len(inputs) > active:  # clients with less work have ended
                inputs, targets = inputs[:active], targets[:active]
            current = stack[:active]
            activations = self._forward(current, inputs)
            first = number < len(first_epoch)
            slopes, means = self._output_gradient(activations[-1], targets, weights[number, :active], with_loss=first)
            if first:
                losses[:active].addcmul_(means.double(), first_epoch[number, :active])
            moved = list(self._backward(current, activations, slopes))
            for layer, weight, offset in moved:
                for part, gradient in ((layer.weight, weight), (layer.offset, offset)):
                    if gradient is None:
                        continue
                    own = part(current)
                    if options.algorithm == "fedprox":
                        gradient.add_(own - part(received[:active]), alpha=options.mu)
                    if corrections is not None:
                        gradient.add_(part(corrections[:active]))
                    if options.weight_decay:
                        gradient.add_(own, alpha=options.weight_decay)
                    if velocity is not None:
                        gradient = part(velocity[:active]).mul_(options.momentum).add_(gradient)
                    own.sub_(gradient, alpha=options.lr)
        finite = (losses + stack.sum(1)).isfinite().tolist()
        ended = zip(stack, losses.tolist(), steps.steps, finite, strict=True)
        return [LocalResult(row, loss, taken, checked=checked) for row, loss, taken, checked in ended]

    def _forward(self, stack: torch.Tensor, inputs: torch.Tensor) -> list[torch.Tensor]:
        """Return the inputs of every layer, and the outputs of the last."""
        activations = [inputs]
        for layer in self.layers:
            weight = layer.weight(stack).transpose(1, 2)
            if layer.bias:
                outputs = torch.baddbmm(layer.offset(stack).unsqueeze(1), activations[-1], weight)
            else:
                outputs = torch.bmm(activations[-1], weight)
            activations.append(outputs if layer is self.layers[-1] else outputs.relu_())
        return activations

    def _output_gradient(
        self, outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, *, with_loss: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weighted loss's gradient with respect to the outputs and, with `with_loss`, each client's loss."""
        losses = torch.empty(0)
        if not self.classification:
            residuals = outputs - targets
            if with_loss:
                losses = (residuals.square() * weights).sum((1, 2)) * 0.5
            return residuals.mul_(weights), losses
        if with_loss:
            logs = outputs.log_softmax(2)
            losses = -(logs.gather(2, targets) * weights).sum((1, 2))
            slopes = logs.exp_()
        else:
            slopes = outputs.softmax(2)
        slopes.scatter_add_(2, targets, slopes.new_full((1, 1, 1), -1.0).expand_as(targets))
        return slopes.mul_(weights), losses

    def _backward(
        self, stack: torch.Tensor, activations: Sequence[torch.Tensor], slopes: torch.Tensor
    ) -> Iterator[tuple[Layer, torch.Tensor, torch.Tensor | None]]:
        """Yield each layer with the gradients of its weights and biases, from the last layer to the first."""
        for depth in range(len(self.layers) - 1, -1, -1):
            layer, inputs = self.layers[depth], activations[depth]
            weight = torch.bmm(slopes.transpose(1, 2), inputs)
            offset = slopes.sum(1) if layer.bias else None
            if depth:
                slopes = torch.bmm(slopes, layer.weight(stack)).mul_(inputs > 0)
            yield layer, weight, offset


__all__ = ["DivergedError", "LocalResult", "TestScore", "TorchTrainer", "Training"]


class TorchTrainer(Trainer):
    """The clients' data and one model instance, which all clients use in turn."""

    def __init__(
        self, data: FederatedData, model: ModelConfig, training: Training, *, seed: int, worker: int = 0
    ) -> None:
        self.device = resolve(training.device, worker=worker)
        check_precision(training.precision, self.device)
        generator = torch.Generator().manual_seed(int(stream(seed, "model").integers(2**62)))
        module = model.build(data.input_shape, data.outputs, generator=generator)
        super().__init__(data, model, training, seed=seed)
        self._flat = FlatModel(
            module, classification=data.classes is not None, device=self.device, precision=training.precision
        )
        self._test = _tensors(data.test, self.device)
        self.initial = self._flat.vector()
        self._flat.check_batches(self.data, training.batch)
        # GPUs train clients one by one: stacks are laid out for the CPU. So do models with a user's functions.
        stacks = self.device.type == "cpu" and module.functions is None
        layers = linear_layers(module, data.input_shape) if stacks else None
        if self._flat.functions.train is not None and training.algorithm != "fedavg":
            raise InputError(
                f"algorithm = {training.algorithm!r} changes the gradients of the usual training, but a train function "
                "makes its own: leave algorithm out"
            )
        self._stacked = None if layers is None else TorchStack.of(layers, data, training, seed=seed)
        if self._stacked is None:
            self._train = [_tensors(samples, self.device) for samples in data.train]
        else:
            self._train = self._stacked.views()
        self.device_kind, self.device_name = self.device.type, described(self.device, training.precision)
        self.gpus = gpus() if training.device in ("auto", "cuda") and self.device.type == "cuda" else 1
        self.trainable = self._flat.trainable
        if self._flat.functions.metric is not None:
            self.own_metric = self._measured
        self.chunk = module.chunk
        self.moving_features = module.moving_features
        self.stackable = self._stacked is not None
        self.max_part_clients = 1 if self._stacked is None else self._stacked.max_part_clients

    def zeros(self, length: int, *, double: bool = False) -> torch.Tensor:
        """Return zeros."""
        return torch.zeros(length, dtype=torch.float64 if double else torch.float32)

    def stack_rows(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return a matrix with these vectors as rows."""
        return rows[0][None] if len(rows) == 1 else torch.stack(list(rows))

    def to_native(self, array: NDArray[np.generic]) -> torch.Tensor:
        """Return a copy of an array as a tensor on the device of the model."""
        return torch.from_numpy(array).clone().to(self.device)

    def buffers(self, parameters: torch.Tensor) -> torch.Tensor:
        """Return a copy of the buffers of a model vector, the entries after the trained ones."""
        return parameters[self.trainable :].clone()

    def next_model(
        self, stepped: torch.Tensor, before: torch.Tensor, buffers: Iterable[tuple[torch.Tensor, float]]
    ) -> torch.Tensor:
        """Return the model after a server step."""
        return torch.cat(
            [stepped.to(before.dtype), mean_buffers(before[self.trainable :], self._flat.integer_buffers, buffers)]
        )

    def to_bytes(self, tensors: Mapping[str, torch.Tensor]) -> bytes:
        """Serialize named tensors in the safetensors format."""
        found: bytes = safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()})
        return found

    def from_bytes(self, content: bytes) -> dict[str, torch.Tensor]:
        """Read what `to_bytes` wrote."""
        return dict(safetensors.torch.load(content))

    def named_tensors(self, parameters: torch.Tensor) -> dict[str, torch.Tensor]:
        """Split `parameters` into tensors, named as in the module."""
        self._flat.load(parameters)
        named = self._flat.module.tensors().items()
        return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in named}

    def split_cohort(self, clients: Sequence[int]) -> list[tuple[int, ...]]:
        """Cut a cohort into parts that are computed at once; the same cohort is always cut in the same way."""
        return [(client,) for client in clients] if self._stacked is None else self._stacked.split_cohort(clients)

    def train_many(
        self,
        parameters: torch.Tensor,
        clients: Sequence[int],
        step: int | Sequence[int],
        corrections: torch.Tensor | None = None,
        work: Sequence[float] | None = None,
    ) -> list[LocalResult]:
        """Train each of `clients` from `parameters`; row i of `corrections` is added to every gradient of client i.

        To train clients on different versions of the model together, pass one row of `parameters` and one `step` per
        client.
        """
        turns = [step] * len(clients) if isinstance(step, int) else step
        if self._stacked is not None:
            return self._stacked.train(parameters, clients, turns, corrections, work)
        received = parameters.expand(len(clients), -1) if parameters.ndim == 1 else parameters
        rows = [None] * len(clients) if corrections is None else list(corrections)
        amounts = [1.0] * len(clients) if work is None else work
        return [self.train_alone(*each) for each in zip(received, clients, turns, rows, amounts, strict=True)]

    def gradients(self, parameters: torch.Tensor, clients: Sequence[int]) -> list[torch.Tensor]:
        """Return the clients' full-batch gradients at `parameters`."""
        if self._stacked is not None:
            return self._stacked.gradients(parameters, clients)
        return [self._gradient(parameters, client) for client in clients]

    def local_losses(
        self, parameters: torch.Tensor, clients: Sequence[int], *, samples: int = 0, step: int = 0
    ) -> list[float]:
        """Return the clients' training losses at `parameters`, on all data or on `samples` drawn with key `step`."""
        chosen = [self._probe_rows(client, samples, step) for client in clients]
        if self._stacked is not None:
            return self._stacked.losses(parameters, clients, chosen)
        return [self._local_loss(parameters, client, rows) for client, rows in zip(clients, chosen, strict=True)]

    def train_alone(
        self,
        parameters: torch.Tensor,
        client: int,
        step: int,
        correction: torch.Tensor | None = None,
        work: float = 1.0,
    ) -> LocalResult:
        """Train one client without stacking, with torch's autograd or the user's function; works for every model."""
        if self._flat.functions.train is not None:
            return self._train_with(self._flat.functions, parameters, client, step, work)
        inputs, targets = self._train[client]
        options, flat = self.training, self._flat
        count = len(targets)
        rng = stream(self.seed, "train", step, client)
        flat.load(parameters)
        start = parameters[: flat.trainable].to(self.device)
        added = None if correction is None else correction[: flat.trainable].to(self.device)
        scale = LOSS_SCALE if options.precision == "float16" else 1.0
        velocity = torch.zeros_like(flat.parameters) if options.momentum else None
        first_epoch, steps, epoch, used = 0.0, 0, 0, 0
        last = steps_of_work(count, options.batch, options.epochs, work, pairs=flat.needs_pairs)
        with flat.training(int(stream(self.seed, "noise", step, client).integers(2**62))):
            while steps < last:
                for rows in islice(batches(count, options.batch, rng, pairs=flat.needs_pairs), last - steps):
                    chosen = rows if isinstance(rows, slice) else torch.from_numpy(rows).to(self.device)
                    flat.gradients.zero_()
                    loss = flat.loss(inputs[chosen], targets[chosen])
                    if scale == 1.0:
                        loss.backward()  # type: ignore[no-untyped-call]
                    else:
                        scale = self._scaled_backward(loss, scale)
                    if epoch == 0:
                        first_epoch += loss.item() * len(targets[chosen]) / count
                        used += len(targets[chosen])
                    if options.algorithm == "fedprox":
                        flat.gradients.add_(flat.parameters - start, alpha=options.mu)
                    if added is not None:
                        flat.gradients.add_(added)
                    self._descend(velocity)
                    steps += 1
                epoch += 1
        if used < count:  # less than an epoch: the mean over the samples that were used
            first_epoch *= count / used
        result = LocalResult(flat.vector(), first_epoch, steps)
        result.check(client, step, options)
        return result

    def _train_with(
        self, functions: Functions, parameters: torch.Tensor, client: int, step: int, part: float
    ) -> LocalResult:
        """Train one client with the user's training function."""
        flat, own = self._flat, self._flat.module
        flat.load(parameters)
        work = Work(step, part, self.training, stream(self.seed, "train", step, client))
        noise = int(stream(self.seed, "noise", step, client).integers(2**62))
        try:
            with flat.training(noise), autocast(self.training.precision, self.device):
                model = own.body if isinstance(own, WrappedModel) else own
                report = functions.report(model, ClientData(client, *self._train[client]), work)
        finally:
            flat.relink()
        result = LocalResult(flat.vector(), report.loss, report.steps)
        result.check(client, step, self.training)
        return result

    def _measured(self, scores: Sequence[TestScore]) -> float:
        """Return the user's metric from the scores of all chunks."""
        outputs, targets = ([getattr(score, name) for score in scores] for name in ("outputs", "targets"))
        return self._flat.functions.measured(torch.cat(outputs), torch.cat(targets))

    def _scaled_backward(self, loss: torch.Tensor, scale: float) -> float:
        """Compute the gradients of a float16 model; return the next scale of the loss.

        If gradients overflow, they are set to 0, so that the step only decays weights, and the scale is halved.
        """
        (scale * loss).backward()  # type: ignore[no-untyped-call]
        gradients = self._flat.gradients.div_(scale)
        if not bool(gradients.isfinite().all()):
            gradients.zero_()
            return max(2.0, scale / 2)
        return scale

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
        found[: self._flat.trainable] = self._flat.gradients.cpu()
        return found

    @torch.no_grad()
    def _local_loss(self, parameters: torch.Tensor, client: int, chosen: NDArray[np.int64] | None) -> float:
        self._flat.load(parameters)
        inputs, targets = self._train[client]
        if chosen is not None:
            rows = torch.from_numpy(chosen).to(self.device)
            inputs, targets = inputs[rows], targets[rows]
        return self._flat.loss(inputs, targets).item()

    @torch.no_grad()
    def moment(self, parameters: torch.Tensor, client: int, *, targets: bool = False) -> FloatArray:
        """Return a factor of the second moment of the client's features at `parameters`, computed from one batch.

        With `targets` it is the joint moment of the features and the one-hot labels (or regression targets).
        """
        self._flat.load(parameters)
        inputs, labels = self._train[client]
        if (chosen := self._moment_rows(client)) is not None:
            batch = torch.from_numpy(chosen).to(self.device)
            inputs, labels = inputs[batch], labels[batch]
        features = self._flat.module.features(inputs).cpu().numpy().astype(np.float64)
        bias = getattr(self._flat.module.head, "bias", None) is not None
        return self._prepared_moment(features, labels.cpu().numpy() if targets else None, parameters, client, bias=bias)

    @torch.no_grad()
    def score_chunk(self, parameters: torch.Tensor, chunk: int) -> TestScore:
        """Evaluate `parameters` on one chunk of the test data."""
        part = slice(chunk * self.chunk, (chunk + 1) * self.chunk)
        return self.score_samples(parameters, [(self._test[0][part], self._test[1][part])])[0]

    @torch.no_grad()
    def score_samples(
        self, parameters: torch.Tensor, samples: Iterable[tuple[torch.Tensor, torch.Tensor]]
    ) -> list[TestScore]:
        """Evaluate `parameters` on each batch of inputs and targets."""
        self._flat.load(parameters)
        found: list[TestScore] = []
        for inputs, targets in samples:
            outputs = self._flat.outputs(inputs)
            correct = int((outputs.argmax(1) == targets).sum()) if self.data.classes is not None else 0
            loss = self._flat.criterion(outputs, targets).item() * len(targets)
            kept = () if self.own_metric is None else (outputs.cpu(), targets.cpu())
            found.append(TestScore(len(targets), loss, correct, *kept))
        return found

    @torch.no_grad()
    def correct(self, parameters: torch.Tensor, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return for each sample whether `parameters` predict its class correctly."""
        self._flat.load(parameters)
        parts = (slice(start, start + self.chunk) for start in range(0, len(targets), self.chunk))
        return torch.cat([self._flat.outputs(inputs[part]).argmax(1) == targets[part] for part in parts]).cpu()

    def _chunks(
        self, inputs: torch.Tensor, targets: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, float]]:
        """Yield chunks that fit into memory, each with its share of the samples."""
        size = self._flat.module.chunk
        for start in range(0, len(targets), size):
            part = slice(start, start + size)
            yield inputs[part], targets[part], len(targets[part]) / len(targets)


def _tensors(samples: Samples, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the samples on the device, where they stay."""
    inputs, targets = np.ascontiguousarray(samples.inputs), np.ascontiguousarray(samples.targets)
    return torch.from_numpy(inputs).to(device), torch.from_numpy(targets).to(device)
