"""`Stacked` trains many clients at once in torch: their models are stacked, one batched matrix product per layer.

The last bits of some models depend on the other clients in the stack, because the matrix kernels depend on memory
alignment. So `Stacking.parts` cuts stacks by the cohort alone, independently of the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedpace.sim.linear import Layer
from fedpace.sim.minibatches import IntArray, Plan
from fedpace.sim.stacking import Batch, Stacking
from fedpace.sim.training import LocalResult


@dataclass(frozen=True, eq=False)
class Stacked(Stacking):
    """Trains models that are rows of a torch tensor."""

    @staticmethod
    def _own(array: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array)

    def _received(self, parameters: torch.Tensor, positions: IntArray) -> torch.Tensor:
        return parameters.expand(len(positions), -1) if parameters.ndim == 1 else parameters[positions]

    def views(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return each client's inputs and targets."""
        sizes = self.counts.tolist()
        return list(zip(torch.split(self.inputs, sizes), torch.split(self.targets, sizes), strict=True))

    @torch.no_grad()
    def gradients(self, parameters: torch.Tensor, clients: Sequence[int]) -> list[torch.Tensor]:
        """Return the clients' full-batch gradients at `parameters`."""
        found = torch.empty(len(clients), parameters.numel())
        for batch in self._all_samples(clients, [None] * len(clients)):
            positions, inputs, targets, weights = self._batch(batch)
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
        """Return the clients' mean losses at `parameters` on the `chosen` samples of each; None = all samples."""
        found = [0.0] * len(clients)
        for batch in self._all_samples(clients, chosen):
            positions, inputs, targets, weights = self._batch(batch)
            outputs = self._forward(parameters.expand(len(positions), -1), inputs)[-1]
            _, losses = self._slopes(outputs, targets, weights, with_loss=True)
            for position, loss in zip(positions, losses.tolist(), strict=True):
                found[position] = loss
        return found

    def _batch(self, batch: Batch) -> tuple[list[int], torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return positions with their inputs, targets and weights."""
        inputs, targets = self._gather(torch.from_numpy(batch.rows))
        return batch.positions, inputs, targets, torch.from_numpy(batch.weights).unsqueeze(2)

    def _gather(self, rows: torch.Tensor, room: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the samples at `rows`; `room`, inputs that are no longer needed, is overwritten to save memory."""
        flat = rows.reshape(-1)
        if room is None:
            inputs = self.inputs.index_select(0, flat).view(*rows.shape, -1)
        else:
            inputs = room[: len(rows)]
            torch.index_select(self.inputs, 0, flat, out=inputs.view(flat.numel(), -1))
        return inputs, self.targets.index_select(0, flat).view(*rows.shape, 1)

    @torch.no_grad()
    def _train_stack(self, received: torch.Tensor, steps: Plan, corrections: torch.Tensor | None) -> list[LocalResult]:
        options = self.training
        rows, weights = torch.from_numpy(steps.rows), torch.from_numpy(steps.weights).unsqueeze(3)
        first_epoch = torch.from_numpy(steps.first_epoch)
        stack = received.clone(memory_format=torch.contiguous_format)
        velocity = torch.zeros_like(stack) if options.momentum else None
        losses = torch.zeros(len(steps.steps), dtype=torch.float64)
        inputs, targets = self._gather(rows[:, 0])
        for number, active in enumerate(steps.training):
            if number and not steps.same:
                inputs, targets = self._gather(rows[:active, number], inputs)
            current = stack[:active]
            activations = self._forward(current, inputs)
            first = number < len(first_epoch)
            slopes, means = self._slopes(activations[-1], targets, weights[number, :active], with_loss=first)
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
        return [LocalResult(row, loss, taken, sound=sound) for row, loss, taken, sound in ended]

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
        """Return the gradient of the weighted loss by the outputs and, with `with_loss`, each client's loss."""
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
