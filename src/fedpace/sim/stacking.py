"""`ClientStack`, the base class for training many clients at once: it cuts cohorts into stacks and plans minibatches.

It serves small models of linear layers and ReLU, for which one step takes less time than the call of an operation. The
result is that of a loop over clients: the same samples in the same order, a short last batch divided by its own size,
and no steps for a client after its last batch. The arithmetic of a step exists twice: for torch in `torch_trainer.py`,
for NumPy in `numpy_trainer.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import FloatArray
from fedpace.core.server_rule import Vector
from fedpace.data.federated import FederatedData
from fedpace.models.contract import Dense
from fedpace.sim.training import BatchPlan, IntArray, LocalResult, Training, local_steps, plan_batches


@dataclass(frozen=True)
class Layer:
    """The position of a linear layer in the flat parameter vector."""

    outputs: int
    inputs: int
    start: int
    bias: bool

    @property
    def middle(self) -> int:
        """Index at which the weights end and the bias starts."""
        return self.start + self.outputs * self.inputs

    @property
    def end(self) -> int:
        """Index after the layer's last entry."""
        return self.middle + (self.outputs if self.bias else 0)

    def weight(self, stack: Vector) -> Vector:
        """Return the weights (clients, outputs, inputs) in a stack of models (clients, parameters)."""
        return stack[:, self.start : self.middle].reshape(-1, self.outputs, self.inputs)  # a view, never a copy

    def offset(self, stack: Vector) -> Vector:
        """Return the biases (clients, outputs) in a stack of models."""
        return stack[:, self.middle : self.end]


def layer_positions(layers: Iterable[Dense]) -> tuple[Layer, ...]:
    """Return the positions of consecutive layers, in the order in which torch modules list parameters."""
    found: list[Layer] = []
    for layer in layers:
        found.append(Layer(layer.outputs, layer.inputs, found[-1].end if found else 0, layer.bias))
    return tuple(found)


PADDED_ROWS = 64
"""Batches of up to so many rows are padded to one common width; wider batches are padded to powers of 2."""

STACK_CLIENTS = 128
"""Most clients in a stack."""

STACK_BYTES = 2**22
"""Most bytes of batches and models in a stack, so that it fits into the processor's caches."""


@dataclass(frozen=True)
class Batch:
    """Samples of several clients, padded with samples of weight 0 to the same number of rows per client."""

    positions: list[int]
    """Positions of these clients in the list of requested clients."""
    rows: IntArray
    """(clients, width): row numbers in the data of all clients."""
    weights: NDArray[np.float32]
    """(clients, width): 1 / samples, or 0."""


@dataclass(frozen=True, eq=False)
class ClientStack(ABC):
    """The clients' samples, with methods that train many models on them at once.

    Args:
        layers: the model's layers.
        inputs: inputs of all clients, one client after the other, (n, d).
        targets: targets in the same order, (n,): classes or regression values.
        counts: number of samples of each client.
        training: options of local training.
        classification: whether the loss is cross-entropy; otherwise it is half the squared error.
        seed: seed of the order of samples.
    """

    layers: tuple[Layer, ...]
    inputs: Vector
    targets: Vector
    counts: IntArray
    training: Training
    classification: bool
    seed: int

    @classmethod
    def of(cls, layers: tuple[Layer, ...], data: FederatedData, training: Training, *, seed: int) -> Self:
        """Build it from federated data."""
        inputs = np.concatenate([samples.inputs.reshape(len(samples), -1) for samples in data.train])
        targets = np.concatenate([samples.targets for samples in data.train])
        return cls(
            layers,
            cls._from_numpy(inputs),
            cls._from_numpy(targets),
            np.array([len(samples) for samples in data.train], dtype=np.int64),
            training,
            classification=data.classes is not None,
            seed=seed,
        )

    @staticmethod
    @abstractmethod
    def _from_numpy(array: NDArray[np.generic]) -> Vector:
        """Convert an array to the type that the subclass computes with."""

    @abstractmethod
    def _initial_models(self, parameters: Vector, positions: IntArray) -> Vector:
        """Return the clients' initial models, one row each: copies of `parameters`, or its rows at `positions`."""

    @abstractmethod
    def _train_stack(self, received: Vector, steps: BatchPlan, corrections: Vector | None) -> list[LocalResult]:
        """Train clients with batches of the same width, each from its row of `received`.

        The clients are sorted by number of steps, most first.
        """

    @abstractmethod
    def gradients(self, parameters: Vector, clients: Sequence[int]) -> list[Vector]:
        """Return the clients' full-batch gradients at `parameters`."""

    @abstractmethod
    def losses(self, parameters: Vector, clients: Sequence[int], chosen: Sequence[IntArray | None]) -> list[float]:
        """Return the clients' mean losses at `parameters` on the `chosen` samples of each; None = all samples."""

    @property
    def max_part_clients(self) -> int:
        """Most clients in a stack of these models."""
        return max(1, min(STACK_CLIENTS, STACK_BYTES // (8 * self.layers[-1].end)))

    def split_cohort(self, clients: Sequence[int]) -> list[tuple[int, ...]]:
        """Cut a cohort into stacks that fit into the processor's caches."""
        parts: list[list[int]] = []
        filled, most = STACK_BYTES, self.max_part_clients
        sizes = 4 * (self._widths[list(clients)] * self.inputs.shape[1] + 2 * self.layers[-1].end)
        for client, size in zip(clients, sizes.tolist(), strict=True):
            if filled + size > STACK_BYTES or len(parts[-1]) == most:
                parts.append([])
                filled = 0
            parts[-1].append(client)
            filled += size
        return [tuple(part) for part in parts]

    def train(
        self,
        parameters: Vector,
        clients: Sequence[int],
        turns: Sequence[int],
        corrections: Vector | None = None,
        work: Sequence[float] | None = None,
    ) -> list[LocalResult]:
        """Train each client from `parameters`, one model for all or one row each; see `Trainer.train_many`."""
        results: dict[int, LocalResult] = {}
        # Most steps first: then the clients that still train are always the first rows of the stack.
        chosen = np.array(clients)
        amounts = None if work is None else np.array(work, dtype=np.float64)
        order = np.argsort(-self._steps(chosen, amounts), kind="stable")
        for width, positions in _by_width(order, self._widths[chosen]):
            members = chosen[positions]
            batch_plan = plan_batches(
                self.seed,
                [turns[position] for position in positions.tolist()],
                members.tolist(),
                self._starts[members],
                self.counts[members],
                batch=self.training.batch,
                epochs=self.training.epochs,
                width=width,
                work=None if amounts is None else amounts[positions],
            )
            added = None if corrections is None else corrections[positions]
            received = self._initial_models(parameters, positions)
            results.update(zip(positions.tolist(), self._train_stack(received, batch_plan, added), strict=True))
        for position, client in enumerate(clients):
            results[position].check(client, turns[position], self.training)
        return [results[position] for position in range(len(clients))]

    # -- inside ----------------------------------------------------------------------------------------------

    def _steps(self, clients: IntArray, work: FloatArray | None) -> IntArray:
        """Return numbers by which to sort clients: their local steps, or their samples if all have the same work."""
        counts = self.counts[clients]
        if work is None:
            return counts
        return local_steps(-(-counts // np.minimum(self.training.batch or counts, counts)), self.training.epochs, work)

    @cached_property
    def _starts(self) -> IntArray:
        return np.cumsum(self.counts) - self.counts

    @cached_property
    def _widths(self) -> IntArray:
        """Padded batch width of each client."""
        return self._padded_widths(self.counts, self.training.batch)

    def _padded_widths(self, counts: IntArray, batch: int = 0) -> IntArray:
        """Return the padded batch widths of clients with `counts` samples and batches of size `batch`; 0 = all."""
        largest = int(self.counts.max())
        batch = min(batch or largest, largest)
        powers = 2 ** np.ceil(np.log2(np.minimum(batch, counts))).astype(np.int64)
        return np.minimum(batch, np.maximum(PADDED_ROWS, powers))

    def _padded_batches(self, clients: Sequence[int], chosen: Sequence[IntArray | None]) -> Iterator[Batch]:
        """Yield the chosen samples of all clients, padded, one stack at a time."""
        starts = self._starts
        counts = [
            self.counts[client] if rows is None else len(rows) for client, rows in zip(clients, chosen, strict=True)
        ]
        for width, group in _by_width(np.arange(len(clients)), self._padded_widths(np.array(counts))):
            together: list[int] = group.tolist()
            buffer = max(1, STACK_BYTES // (4 * width * self.inputs.shape[1]))
            for begin in range(0, len(together), buffer):
                positions = together[begin : begin + buffer]
                rows = np.empty((len(positions), width), dtype=np.int64)
                weights = np.zeros((len(positions), width), dtype=np.float32)
                for place, position in enumerate(positions):
                    client = clients[position]
                    some = chosen[position]
                    own = np.arange(self.counts[client]) if some is None else some
                    rows[place] = starts[client]
                    rows[place, : len(own)] += own
                    weights[place, : len(own)] = 1 / len(own)
                yield Batch(positions, rows, weights)


def _by_width(order: IntArray, widths: IntArray) -> Iterator[tuple[int, IntArray]]:
    """Yield each width with the positions of the clients that have it, in `order`."""
    for width in np.unique(widths).tolist():
        yield width, order[widths[order] == width]
