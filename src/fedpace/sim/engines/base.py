"""`Engine`, the base class of engines: everything that the simulator calls, except the abstract method `_run`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, ClassVar

from fedpace._base.checks import FloatArray
from fedpace.core.stepping import Vector
from fedpace.sim.engines.tasks import GradientTask, LossTask, MomentTask, Task, TestTask, TrainTask
from fedpace.sim.trainers import AnyTrainer
from fedpace.sim.training import LocalResult

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

    def __init__(self, trainer: AnyTrainer) -> None:
        self.trainer = trainer

    @abstractmethod
    def _run(self, parameters: Vector, tasks: Sequence[Task]) -> Iterator[Sequence[Any]]:
        """Yield the answers to each task, in the order of `tasks`; raise a task's exception when its turn comes."""

    def close(self) -> None:  # noqa: B027  an engine in this process holds nothing
        """Release the engine's resources."""

    def train(
        self,
        parameters: Vector,
        clients: Sequence[int],
        step: int,
        corrections: Corrections | None = None,
    ) -> Iterator[LocalResult]:
        """Train each client from `parameters`; yield results one by one, so that not all are in memory at once."""
        return self._spread(
            parameters,
            [
                TrainTask(
                    part, step, None if corrections is None else self.trainer.table([corrections(c) for c in part])
                )
                for part in self.trainer.parts(clients)
            ],
        )

    def train_apart(
        self,
        received: Sequence[Vector],
        clients: Sequence[int],
        turns: Sequence[int],
        corrections: Corrections | None = None,
    ) -> Iterator[LocalResult]:
        """Train each client from its own model and with its own key of random draws; as fast as `train`."""
        tasks: list[TrainTask] = []
        first = 0
        for part in self.trainer.parts(clients):
            own = slice(first, first := first + len(part))
            added = None if corrections is None else self.trainer.table([corrections(client) for client in part])
            tasks.append(TrainTask(part, tuple(turns[own]), added, self.trainer.table(received[own])))
        return self._spread(received[0], tasks) if tasks else iter(())

    def gradients(self, parameters: Vector, clients: Sequence[int]) -> Iterator[Vector]:
        """Yield the clients' full-batch gradients."""
        return self._spread(parameters, [GradientTask(part) for part in self.trainer.parts(clients)])

    def local_losses(
        self, parameters: Vector, clients: Sequence[int], *, samples: int = 0, step: int = 0
    ) -> list[float]:
        """Return the clients' training losses, on all data or on `samples` drawn with key `step`."""
        return list(self._spread(parameters, [LossTask(part, samples, step) for part in self.trainer.parts(clients)]))

    def moments(self, parameters: Vector, clients: Sequence[int], *, targets: bool = False) -> list[FloatArray]:
        """Return the factors of the clients' feature moments; with `targets`, of features and labels jointly."""
        return list(self._spread(parameters, [MomentTask(part, targets) for part in self.trainer.parts(clients)]))

    def evaluate(self, parameters: Vector) -> tuple[float, float]:
        """Return the metric and the scaled loss on the test data."""
        tasks = [TestTask(chunk) for chunk in range(self.trainer.test_chunks)]
        return self.trainer.total(self._spread(parameters, tasks))

    def _spread(self, parameters: Vector, tasks: Sequence[Task]) -> Iterator[Any]:
        return chain.from_iterable(self._run(parameters, tasks))
