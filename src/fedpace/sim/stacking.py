"""`Stacking`, the base class for training many clients at once: it cuts cohorts into stacks and plans minibatches.

It serves small models of linear layers and ReLU, for which one step takes less time than the call of an operation. The
result is that of a loop over clients: the same samples in the same order, a short last batch divided by its own size,
and no steps for a client after its last batch. The arithmetic of a step exists twice: for torch in `stacked.py`, for
NumPy in `numpy_stacked.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fedpace.core.stepping import Vector
from fedpace.data.federated import FederatedData
from fedpace.sim.linear import Layer
from fedpace.sim.minibatches import IntArray, Plan, plan
from fedpace.sim.training import LocalResult, Training

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
class Stacking(ABC):
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
            cls._own(inputs),
            cls._own(targets),
            np.array([len(samples) for samples in data.train], dtype=np.int64),
            training,
            classification=data.classes is not None,
            seed=seed,
        )

    @staticmethod
    @abstractmethod
    def _own(array: NDArray[np.generic]) -> Vector:
        """Convert an array to the type that the subclass computes with."""

    @abstractmethod
    def _received(self, parameters: Vector, positions: IntArray) -> Vector:
        """Return the clients' initial models, one row each: copies of `parameters`, or its rows at `positions`."""

    @abstractmethod
    def _train_stack(self, received: Vector, steps: Plan, corrections: Vector | None) -> list[LocalResult]:
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
    def largest_part(self) -> int:
        """Most clients in a stack of these models."""
        return max(1, min(STACK_CLIENTS, STACK_BYTES // (8 * self.layers[-1].end)))

    def parts(self, clients: Sequence[int]) -> list[tuple[int, ...]]:
        """Cut a cohort into stacks that fit into the processor's caches."""
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

    def train(
        self,
        parameters: Vector,
        clients: Sequence[int],
        turns: Sequence[int],
        corrections: Vector | None = None,
    ) -> list[LocalResult]:
        """Train each client from `parameters`, one model for all or one row each; see `Trainer.train_many`."""
        results: dict[int, LocalResult] = {}
        # Most steps first: then the clients that still train are always the first rows of the stack.
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
            received = self._received(parameters, positions)
            results.update(zip(positions.tolist(), self._train_stack(received, plan_, added), strict=True))
        for position, client in enumerate(clients):
            results[position].check(client, turns[position], self.training)
        return [results[position] for position in range(len(clients))]

    # -- inside ----------------------------------------------------------------------------------------------

    @cached_property
    def _starts(self) -> IntArray:
        return np.cumsum(self.counts) - self.counts

    @cached_property
    def _widths(self) -> IntArray:
        """Padded batch width of each client."""
        return self._padded(self.counts, self.training.batch)

    def _padded(self, counts: IntArray, batch: int = 0) -> IntArray:
        """Return the padded batch widths of clients with `counts` samples and batches of size `batch`; 0 = all."""
        largest = int(self.counts.max())
        batch = min(batch or largest, largest)
        powers = 2 ** np.ceil(np.log2(np.minimum(batch, counts))).astype(np.int64)
        return np.minimum(batch, np.maximum(PADDED_ROWS, powers))

    def _all_samples(self, clients: Sequence[int], chosen: Sequence[IntArray | None]) -> Iterator[Batch]:
        """Yield the chosen samples of all clients, padded, one stack at a time."""
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
                weights = np.zeros((len(positions), width), dtype=np.float32)
                for place, position in enumerate(positions):
                    client = clients[position]
                    some = chosen[position]
                    own = np.arange(self.counts[client]) if some is None else some
                    rows[place] = starts[client]
                    rows[place, : len(own)] += own
                    weights[place, : len(own)] = 1 / len(own)
                yield Batch(positions, rows, weights)


def _grouped(order: IntArray, widths: IntArray) -> Iterator[tuple[int, IntArray]]:
    """Yield each width with the positions of the clients that have it, in `order`."""
    for width in np.unique(widths).tolist():
        yield width, order[widths[order] == width]
