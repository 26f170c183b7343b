"""The base class of engines (`Engine`), their tasks, and `Inline`, the engine that computes in this process.

A task is the unit of work that an engine distributes: training, gradients, losses, moments or a test. It is cheap to
send: a worker already has the data, and gets the parameters once for all tasks of a call. A task carries models only if
its clients start from different versions. Which clients share a task never depends on the engine, so the results are
the same in every engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, Protocol

from fedpace._base.checks import FloatArray
from fedpace._base.errors import FedpaceError
from fedpace.core.server_rule import Vector
from fedpace.sim.engines.threads import one_thread
from fedpace.sim.trainers import TestScore, Trainer
from fedpace.sim.training import LocalResult


class WorkerLostError(FedpaceError, RuntimeError):
    """Several workers in a row died while computing the same task."""


class EngineTask(Protocol):
    """One unit of work."""

    def cost(self, trainer: Trainer) -> float:
        """Return the relative duration of the task, in any unit; the longest tasks start first."""
        ...

    def run(self, trainer: Trainer, parameters: Vector) -> Sequence[Any]:
        """Compute the task; return one answer per client."""
        ...


@dataclass(frozen=True)
class ClientTask:
    """Base class of tasks about one or more clients."""

    clients: tuple[int, ...]

    def cost(self, trainer: Trainer) -> float:
        """Return the samples to go through."""
        return float(sum(trainer.samples(client) for client in self.clients))


@dataclass(frozen=True, eq=False)
class TrainTask(ClientTask):
    """Local training with key `step` of random draws; `corrections` (clients, parameters) are added to every gradient.

    If clients start from different versions, `received` (clients, parameters) holds them, and `step` is one per client.
    """

    step: int | tuple[int, ...]
    corrections: Vector | None = field(default=None, repr=False)
    received: Vector | None = field(default=None, repr=False)
    work: tuple[float, ...] | None = None
    """Multiples of the configured local training, one per client; None = 1 for all."""

    def cost(self, trainer: Trainer) -> float:
        """Return the samples to go through."""
        amounts = [1.0] * len(self.clients) if self.work is None else self.work
        return sum(amount * trainer.samples(client) for amount, client in zip(amounts, self.clients, strict=True))

    def run(self, trainer: Trainer, parameters: Vector) -> Sequence[LocalResult]:
        """Return each client's trained model."""
        received = parameters if self.received is None else self.received
        return trainer.train_many(received, self.clients, self.step, self.corrections, self.work)


@dataclass(frozen=True)
class GradientTask(ClientTask):
    """Full-batch gradients of clients."""

    def run(self, trainer: Trainer, parameters: Vector) -> Sequence[Vector]:
        """Return each client's gradient."""
        return trainer.gradients(parameters, self.clients)


@dataclass(frozen=True)
class LossTask(ClientTask):
    """Training losses, on all samples or on `samples` drawn with key `step`."""

    samples: int = 0
    step: int = 0

    def run(self, trainer: Trainer, parameters: Vector) -> Sequence[float]:
        """Return each client's loss."""
        return trainer.local_losses(parameters, self.clients, samples=self.samples, step=self.step)


@dataclass(frozen=True)
class MomentTask(ClientTask):
    """Feature moments; with `targets`, of features and labels jointly."""

    targets: bool = False

    def run(self, trainer: Trainer, parameters: Vector) -> Sequence[FloatArray]:
        """Return the factor of each client's moment."""
        return [trainer.moment(parameters, client, targets=self.targets) for client in self.clients]


@dataclass(frozen=True)
class TestTask:
    """Evaluation of the shared model on one chunk of the test data."""

    __test__ = False  # keeps pytest from collecting the class

    chunk: int

    def cost(self, trainer: Trainer) -> float:
        """Return the samples to go through."""
        return float(trainer.chunk)

    def run(self, trainer: Trainer, parameters: Vector) -> Sequence[TestScore]:
        """Return the chunk's score."""
        return [trainer.score_chunk(parameters, self.chunk)]


Corrections = Callable[[int], Vector]
"""Client -> vector that is added to each of its gradients (SCAFFOLD)."""


class Engine(ABC):
    """Computes the clients' work. Answers come in the order of the given clients, whichever is computed first.

    A subclass implements `_run`, and `close` if it holds resources. It acquires resources at first use, so building an
    engine to check a configuration costs nothing. After `close` it may be used again.

    Args:
        trainer: the clients' data, model and training options.
    """

    name: ClassVar[str]

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    @abstractmethod
    def _run(self, parameters: Vector, tasks: Sequence[EngineTask]) -> Iterator[Sequence[Any]]:
        """Yield the answers to each task, in the order of `tasks`; raise a task's exception when its turn comes."""

    def close(self) -> None:  # noqa: B027  an engine in this process holds nothing
        """Release the engine's resources."""

    def train(
        self,
        parameters: Vector,
        clients: Sequence[int],
        step: int,
        corrections: Corrections | None = None,
        work: Sequence[float] | None = None,
    ) -> Iterator[LocalResult]:
        """Train each client from `parameters`; yield results one by one, so that not all are in memory at once.

        `work` are multiples of the configured local training, one per client; None = 1 for all.
        """
        return self._run_all(
            parameters,
            [
                TrainTask(part, step, self._corrections(corrections, part), work=_part_of(work, own))
                for part, own in self._parts(clients)
            ],
        )

    def train_from(
        self,
        received: Sequence[Vector],
        clients: Sequence[int],
        turns: Sequence[int],
        corrections: Corrections | None = None,
        work: Sequence[float] | None = None,
    ) -> Iterator[LocalResult]:
        """Train each client from its own model and with its own key of random draws; as fast as `train`."""
        tasks = [
            TrainTask(
                part,
                tuple(turns[own]),
                self._corrections(corrections, part),
                self.trainer.stack_rows(received[own]),
                _part_of(work, own),
            )
            for part, own in self._parts(clients)
        ]
        return self._run_all(received[0], tasks) if tasks else iter(())

    def _parts(self, clients: Sequence[int]) -> Iterator[tuple[tuple[int, ...], slice]]:
        """Yield the parts of a cohort that are computed at once, each with its positions in `clients`."""
        first = 0
        for part in self.trainer.split_cohort(clients):
            yield part, slice(first, first := first + len(part))

    def _corrections(self, corrections: Corrections | None, part: tuple[int, ...]) -> Vector | None:
        return None if corrections is None else self.trainer.stack_rows([corrections(client) for client in part])

    def gradients(self, parameters: Vector, clients: Sequence[int]) -> Iterator[Vector]:
        """Yield the clients' full-batch gradients."""
        return self._run_all(parameters, [GradientTask(part) for part in self.trainer.split_cohort(clients)])

    def local_losses(
        self, parameters: Vector, clients: Sequence[int], *, samples: int = 0, step: int = 0
    ) -> list[float]:
        """Return the clients' training losses, on all data or on `samples` drawn with key `step`."""
        return list(
            self._run_all(parameters, [LossTask(part, samples, step) for part in self.trainer.split_cohort(clients)])
        )

    def moments(self, parameters: Vector, clients: Sequence[int], *, targets: bool = False) -> list[FloatArray]:
        """Return the factors of the clients' feature moments; with `targets`, of features and labels jointly."""
        return list(
            self._run_all(parameters, [MomentTask(part, targets) for part in self.trainer.split_cohort(clients)])
        )

    def evaluate(self, parameters: Vector) -> tuple[float, float]:
        """Return the metric and the scaled loss on the test data."""
        tasks = [TestTask(chunk) for chunk in range(self.trainer.test_chunks)]
        return self.trainer.total_score(self._run_all(parameters, tasks))

    def _run_all(self, parameters: Vector, tasks: Sequence[EngineTask]) -> Iterator[Any]:
        return chain.from_iterable(self._run(parameters, tasks))


class Inline(Engine):
    """Runs in this process, without setup: the best engine for small models, where a whole cohort is one task."""

    name: ClassVar[str] = "inline"

    def _run(self, parameters: Vector, tasks: Sequence[EngineTask]) -> Iterator[Sequence[Any]]:
        for task in tasks:
            with one_thread():
                answers = task.run(self.trainer, parameters)
            yield answers


def _part_of(work: Sequence[float] | None, own: slice) -> tuple[float, ...] | None:
    return None if work is None else tuple(work[own])
