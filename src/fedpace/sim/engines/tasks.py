"""The pieces that an engine spreads: what one of them asks for, what it costs, and how a trainer answers it.

A task carries no data and, where all clients were given the same, no model, so that it is cheap to send: a worker has
the data, and gets the parameters once for all tasks of a call. What a task covers is decided here, never by the engine:
its arithmetic then is the same wherever it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedpace._base.checks import FloatArray
from fedpace.core.stepping import Vector
from fedpace.sim.trainers import AnyTrainer, TestScore
from fedpace.sim.training import LocalResult


class Task(Protocol):
    """One piece of work."""

    def cost(self, trainer: AnyTrainer) -> float:
        """Return how long it takes, in any unit: the longest go first."""
        ...

    def run(self, trainer: AnyTrainer, parameters: Vector) -> Sequence[Any]:
        """Return the answers, one per client."""
        ...


@dataclass(frozen=True)
class OfClients:
    """A task about these clients."""

    clients: tuple[int, ...]

    def cost(self, trainer: AnyTrainer) -> float:
        """Return the samples to go through."""
        return float(sum(trainer.samples(client) for client in self.clients))


@dataclass(frozen=True, eq=False)
class TrainTask(OfClients):
    """Local training in a step; `corrections` (clients, parameters) are added to every gradient.

    Who trains another version than the others brings it: `received` (clients, parameters), with a step each.
    """

    step: int | tuple[int, ...]
    corrections: Vector | None = field(default=None, repr=False)
    received: Vector | None = field(default=None, repr=False)

    def run(self, trainer: AnyTrainer, parameters: Vector) -> Sequence[LocalResult]:
        """Return where each client ended."""
        received = parameters if self.received is None else self.received
        return trainer.train_many(received, self.clients, self.step, self.corrections)


@dataclass(frozen=True)
class GradientTask(OfClients):
    """Full-batch gradients."""

    def run(self, trainer: AnyTrainer, parameters: Vector) -> Sequence[Vector]:
        """Return each client's gradient."""
        return trainer.gradients(parameters, self.clients)


@dataclass(frozen=True)
class LossTask(OfClients):
    """Training losses, on all samples or on some drawn in `step`."""

    samples: int = 0
    step: int = 0

    def run(self, trainer: AnyTrainer, parameters: Vector) -> Sequence[float]:
        """Return each client's loss."""
        return trainer.local_losses(parameters, self.clients, samples=self.samples, step=self.step)


@dataclass(frozen=True)
class MomentTask(OfClients):
    """Moments of the features, with `targets` jointly with the labels."""

    targets: bool = False

    def run(self, trainer: AnyTrainer, parameters: Vector) -> Sequence[FloatArray]:
        """Return each client's factor."""
        return [trainer.moment(parameters, client, targets=self.targets) for client in self.clients]


@dataclass(frozen=True)
class TestTask:
    """The shared model on one chunk of the test data."""

    __test__ = False  # pytest takes the name for a test's

    chunk: int

    def cost(self, trainer: AnyTrainer) -> float:
        """Return the samples to go through."""
        return float(trainer.chunk)

    def run(self, trainer: AnyTrainer, parameters: Vector) -> Sequence[TestScore]:
        """Return the chunk's score."""
        return [trainer.score(parameters, self.chunk)]
