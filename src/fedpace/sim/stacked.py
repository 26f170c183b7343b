"""Many clients trained at once: their models stacked, each step one batched matrix product per layer.

For models of linear layers and ReLU, whose steps take less time than torch takes to start an operation. The arithmetic
is that of the loop over clients, minibatch by minibatch: the same samples in the same order, a short last batch divided
by its own size, and a client that has no more batches stops while the others go on.

Whom a client is stacked with shows in the last bits of some models, since the kernels of the product look at where a
matrix lies in memory. So stacks are cut by the cohort alone (`Stacked.parts`), never by an engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from fedpace.data.federated import FederatedData
from fedpace.sim.layers import Layer
from fedpace.sim.minibatches import IntArray, Plan, plan
from fedpace.sim.training import LocalResult, Training

PADDED_ROWS = 64
"""Rows up to which all clients are padded to one width; wider batches are padded to powers of 2."""

STACK_CLIENTS = 128
"""Clients in a stack."""

STACK_BYTES = 2**22
"""Bytes of batches and models in a stack: what the caches hold."""


def _grouped(order: IntArray, widths: IntArray) -> Iterator[tuple[int, IntArray]]:
    """Yield each width with the positions that have it, in `order`."""
    for width in np.unique(widths).tolist():
        yield width, order[widths[order] == width]


@dataclass(frozen=True, eq=False)
class Stacked:
    """The clients' samples, and how to train many models on them at once.

    Args:
        layers: of the model, as `linear_layers` finds them.
        inputs: of all clients, one after the other, (n, d).
        targets: likewise, (n,): classes, or values to regress on.
        counts: samples of each client.
        training: how clients train.
        classification: cross-entropy rather than half the squared error.
        seed: of the order of samples.
    """

    layers: tuple[Layer, ...]
    inputs: torch.Tensor
    targets: torch.Tensor
    counts: IntArray
    training: Training
    classification: bool
    seed: int

    @classmethod
    def of(cls, layers: tuple[Layer, ...], data: FederatedData, training: Training, *, seed: int) -> Stacked:
        """Return the clients of `data`."""
        inputs = np.concatenate([samples.inputs.reshape(len(samples), -1) for samples in data.train])
        targets = np.concatenate([samples.targets for samples in data.train])
        return cls(
            layers,
            torch.from_numpy(inputs),
            torch.from_numpy(targets),
            np.array([len(samples) for samples in data.train], dtype=np.int64),
            training,
            classification=data.classes is not None,
            seed=seed,
        )

    def views(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return each client's inputs and targets."""
        sizes = self.counts.tolist()
        return list(zip(torch.split(self.inputs, sizes), torch.split(self.targets, sizes), strict=True))

    @property
    def largest_part(self) -> int:
        """Clients in a stack at the most."""
        return max(1, min(STACK_CLIENTS, STACK_BYTES // (8 * self.layers[-1].end)))

    def parts(self, clients: Sequence[int]) -> list[tuple[int, ...]]:
        """Cut a cohort into stacks that stay in the processor's caches."""
        parts: list[list[int]] = []
        filled, most = STACK_BYTES, self.largest_part
        sizes = 4 * (self._widths[list(clients)] * self.inputs.shape[1] + 2 * self.layers[-1].end)
        for client, size in zip(clients, sizes.tolist(), strict=True):
            if filled + size > STACK_BYTES or len(parts[-1]) == most:
                parts.append([])
                filled = 0
            parts[-1].append(client)
            filled += size
        return [tuple(part) for part in parts]

    @torch.no_grad()
    def train(
        self,
        parameters: torch.Tensor,
        clients: Sequence[int],
        turns: Sequence[int],
        corrections: torch.Tensor | None = None,
    ) -> list[LocalResult]:
        """Train each client from `parameters`, the same for all or a row each; see `Trainer.train_many`."""
        results: dict[int, LocalResult] = {}
        # Who has the most steps comes first: those that still train are then the first rows of the stack.
        chosen = np.array(clients)
        order = np.argsort(-self.counts[chosen], kind="stable")
        for width, positions in _grouped(order, self._widths[chosen]):
            members = chosen[positions]
            plan_ = plan(
                self.seed,
                [turns[position] for position in positions.tolist()],
                members.tolist(),
                self._starts[members],
                self.counts[members],
                batch=self.training.batch,
                epochs=self.training.epochs,
                width=width,
            )
            added = None if corrections is None else corrections[positions]
            received = parameters.expand(len(positions), -1) if parameters.ndim == 1 else parameters[positions]
            results.update(zip(positions.tolist(), self._train_stack(received, plan_, added), strict=True))
        for position, client in enumerate(clients):
            results[position].check(client, turns[position], self.training)
        return [results[position] for position in range(len(clients))]

    @torch.no_grad()
    def gradients(self, parameters: torch.Tensor, clients: Sequence[int]) -> list[torch.Tensor]:
        """Return the clients' full-batch gradients at `parameters`."""
        found = torch.empty(len(clients), parameters.numel())
        for positions, inputs, targets, weights in self._all_samples(clients, [None] * len(clients)):
            stack = parameters.expand(len(positions), -1)
            activations = self._forward(stack, inputs)
            slopes, _ = self._slopes(activations[-1], targets, weights, with_loss=False)
            for layer, weight, offset in self._backward(stack, activations, slopes):
                layer.weight(found)[positions] = weight
                if offset is not None:
                    layer.offset(found)[positions] = offset
        return list(found)

    @torch.no_grad()
    def losses(
        self, parameters: torch.Tensor, clients: Sequence[int], chosen: Sequence[IntArray | None]
    ) -> list[float]:
        """Return the clients' mean losses at `parameters`, on the `chosen` of their samples; None = all."""
        found = [0.0] * len(clients)
        for positions, inputs, targets, weights in self._all_samples(clients, chosen):
            outputs = self._forward(parameters.expand(len(positions), -1), inputs)[-1]
            _, losses = self._slopes(outputs, targets, weights, with_loss=True)
            for position, loss in zip(positions, losses.tolist(), strict=True):
                found[position] = loss
        return found

    # -- inside ----------------------------------------------------------------------------------------------

    @cached_property
    def _starts(self) -> IntArray:
        return np.cumsum(self.counts) - self.counts

    @cached_property
    def _widths(self) -> IntArray:
        """Rows that each client's batches are padded to."""
        return self._padded(self.counts, self.training.batch)

    def _padded(self, counts: IntArray, batch: int = 0) -> IntArray:
        """Return the rows that batches are padded to, where `counts` samples are learnt from `batch` at a time."""
        largest = int(self.counts.max())
        batch = min(batch or largest, largest)
        powers = 2 ** np.ceil(np.log2(np.minimum(batch, counts))).astype(np.int64)
        return np.minimum(batch, np.maximum(PADDED_ROWS, powers))

    def _all_samples(
        self, clients: Sequence[int], chosen: Sequence[IntArray | None]
    ) -> Iterator[tuple[list[int], torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Yield positions with their inputs, targets and weights, padded, a stack at a time."""
        starts = self._starts
        counts = [
            self.counts[client] if rows is None else len(rows) for client, rows in zip(clients, chosen, strict=True)
        ]
        for width, group in _grouped(np.arange(len(clients)), self._padded(np.array(counts))):
            together: list[int] = group.tolist()
            room = max(1, STACK_BYTES // (4 * width * self.inputs.shape[1]))
            for begin in range(0, len(together), room):
                positions = together[begin : begin + room]
                rows = np.empty((len(positions), width), dtype=np.int64)
                weights = np.zeros((len(positions), width, 1), dtype=np.float32)
                for place, position in enumerate(positions):
                    client = clients[position]
                    some = chosen[position]
                    own = np.arange(self.counts[client]) if some is None else some
                    rows[place] = starts[client]
                    rows[place, : len(own)] += own
                    weights[place, : len(own)] = 1 / len(own)
                inputs, targets = self._gather(torch.from_numpy(rows))
                yield positions, inputs, targets, torch.from_numpy(weights)

    def _gather(self, rows: torch.Tensor, room: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return samples by their rows; inputs that are no longer needed are `room` for others, at most as many."""
        flat = rows.reshape(-1)
        if room is None:
            inputs = self.inputs.index_select(0, flat).view(*rows.shape, -1)
        else:
            inputs = room[: len(rows)]
            torch.index_select(self.inputs, 0, flat, out=inputs.view(flat.numel(), -1))
        return inputs, self.targets.index_select(0, flat).view(*rows.shape, 1)

    def _train_stack(
        self, received: torch.Tensor, steps: Plan, corrections: torch.Tensor | None
    ) -> Iterator[LocalResult]:
        """Train clients whose batches are of one width, those with the most steps first, from a row of models each."""
        options = self.training
        stack = received.clone(memory_format=torch.contiguous_format)
        velocity = torch.zeros_like(stack) if options.momentum else None
        losses = torch.zeros(len(steps.steps), dtype=torch.float64)
        inputs, targets = self._gather(steps.rows[:, 0])
        for number, active in enumerate(steps.training):
            if number and not steps.same:
                inputs, targets = self._gather(steps.rows[:active, number], inputs)
            current = stack[:active]
            activations = self._forward(current, inputs)
            first = number < len(steps.first_epoch)
            slopes, means = self._slopes(activations[-1], targets, steps.weights[number, :active], with_loss=first)
            if first:
                losses[:active].addcmul_(means.double(), steps.first_epoch[number, :active])
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
        for row, loss, taken, sound in zip(stack, losses.tolist(), steps.steps, finite, strict=True):
            yield LocalResult(row, loss, taken, sound=sound)

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

    def _slopes(
        self, outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, *, with_loss: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradient of the weighted loss by the outputs, and with `with_loss` the loss of each client."""
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
        """Yield each layer, the last first, with the gradients of its weights and biases."""
        for depth in range(len(self.layers) - 1, -1, -1):
            layer, inputs = self.layers[depth], activations[depth]
            weight = torch.bmm(slopes.transpose(1, 2), inputs)
            offset = slopes.sum(1) if layer.bias else None
            if depth:
                slopes = torch.bmm(slopes, layer.weight(stack)).mul_(inputs > 0)
            yield layer, weight, offset
