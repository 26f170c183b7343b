"""Tasks, the units of work that an engine distributes: training, gradients, losses, moments and tests.

A task is cheap to send: a worker already has the data, and gets the parameters once for all tasks of a call. A task
carries models only if its clients start from different versions. Which clients share a task never depends on the
engine, so the results are the same in every engine.
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
    """One unit of work."""

    def cost(self, trainer: AnyTrainer) -> float:
        """Return the relative duration of the task, in any unit; the longest tasks start first."""
        ...

    def run(self, trainer: AnyTrainer, parameters: Vector) -> Sequence[Any]:
        """Compute the task; return one answer per client."""
        ...


@dataclass(frozen=True)
class OfClients:
    """Base class of tasks about one or more clients."""

    clients: tuple[int, ...]

    def cost(self, trainer: AnyTrainer) -> float:
        """Return the samples to go through."""
        return float(sum(trainer.samples(client) for client in self.clients))


@dataclass(frozen=True, eq=False)
class TrainTask(OfClients):
    """Local training with key `step` of random draws; `corrections` (clients, parameters) are added to every gradient.

    If clients start from different versions, `received` (clients, parameters) holds them, and `step` is one per client.
    """

    step: int | tuple[int, ...]
    corrections: Vector | None = field(default=None, repr=False)
    received: Vector | None = field(default=None, repr=False)

    def run(self, trainer: AnyTrainer, parameters: Vector) -> Sequence[LocalResult]:
        """Return each client's trained model."""
        received = parameters if self.received is None else self.received
        return trainer.train_many(received, self.clients, self.step, self.corrections)


@dataclass(frozen=True)
class GradientTask(OfClients):
    """Full-batch gradients of clients."""

    def run(self, trainer: AnyTrainer, parameters: Vector) -> Sequence[Vector]:
        """Return each client's gradient."""
        return trainer.gradients(parameters, self.clients)


@dataclass(frozen=True)
class LossTask(OfClients):
    """Training losses, on all samples or on `samples` drawn with key `step`."""

    samples: int = 0
    step: int = 0

    def run(self, trainer: AnyTrainer, parameters: Vector) -> Sequence[float]:
        """Return each client's loss."""
        return trainer.local_losses(parameters, self.clients, samples=self.samples, step=self.step)


@dataclass(frozen=True)
class MomentTask(OfClients):
    """Feature moments; with `targets`, of features and labels jointly."""

    targets: bool = False

    def run(self, trainer: AnyTrainer, parameters: Vector) -> Sequence[FloatArray]:
        """Return the factor of each client's moment."""
        return [trainer.moment(parameters, client, targets=self.targets) for client in self.clients]


@dataclass(frozen=True)
class TestTask:
    """Evaluation of the shared model on one chunk of the test data."""

    __test__ = False  # keeps pytest from collecting the class

    chunk: int

    def cost(self, trainer: AnyTrainer) -> float:
        """Return the samples to go through."""
        return float(trainer.chunk)

    def run(self, trainer: AnyTrainer, parameters: Vector) -> Sequence[TestScore]:
        """Return the chunk's score."""
        return [trainer.score(parameters, self.chunk)]
