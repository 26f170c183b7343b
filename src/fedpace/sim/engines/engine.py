"""The base class of engines (`Engine`), their tasks, and `Inline`, the engine that computes in this process.

A task is the unit of work that an engine distributes: training, gradients, losses, moments or a test. It is cheap to
send: a worker already has the data, and gets the parameters once for all tasks of a call. A task carries models only if
its clients start from different versions. Which clients share a task never depends on the engine, so the results are
the same in every engine.

Every task is limited to one thread: a sum computed by several threads differs in its last bits, so records would depend
on the number of cores. Engines use the cores by training several clients in parallel instead.

`EngineOptions` is the user's request, and `EngineChoice` the decision for one run. They decide how fast a run is, never
its results, so they are not part of an experiment.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal, Protocol

from fedpace._base.checks import FloatArray
from fedpace._base.errors import FedpaceError, InputError
from fedpace._base.options import AtLeast, Options
from fedpace.core.server_rule import Vector
from fedpace.sim.engines import EngineName
from fedpace.sim.trainers import TestScore, Trainer
from fedpace.sim.training import LocalResult

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""Limits numerical libraries to one thread, because threads of parallel processes slow each other down."""


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables inside the `with` block, and restore the old values after it."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch, if it is loaded, to one thread inside the `with` block."""
    torch = sys.modules.get("torch")
    before = 1 if torch is None else torch.get_num_threads()
    if torch is None or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def limit_to_one_thread() -> None:
    """Limit this process to one thread for good, in libraries already loaded and in those loaded later."""
    from threadpoolctl import threadpool_limits

    os.environ.update(ONE_THREAD)
    threadpool_limits(limits=1)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


class WorkerLostError(FedpaceError, RuntimeError):
    """Several workers in a row died while computing the same task."""


class EngineTask(Protocol):
    """One unit of work."""

    def cost(self, trainer: Trainer) -> float:
        """Return the relative duration of the task, in any unit; the longest tasks start first."""

    def run(self, trainer: Trainer, parameters: Vector) -> Sequence[Any]:
        """Compute the task; return one answer per client."""


@dataclass(frozen=True)
class ClientTask:
    """Base class of tasks about one or more clients."""

    clients: tuple[int, ...]

    def cost(self, trainer: Trainer) -> float:
        """Return the samples to go through."""
        return float(sum(trainer.counts[client] for client in self.clients))


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
        return sum(amount * trainer.counts[client] for amount, client in zip(amounts, self.clients, strict=True))

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


@dataclass(frozen=True)
class EngineOptions(Options):
    """The engine that the user asks for.

    Args:
        name: `inline`, `processes`, `ray`, or `auto`, which picks `inline` or `processes` for the model and the cohort.
        workers: number of parallel processes; 0 = one per core (of the cluster, for `ray`).
        ray_address: address of the Ray cluster to join, `auto` for the one that this machine belongs to; None = start
            one on this machine.
    """

    options_of: ClassVar[str] = "the engine"

    name: EngineName = "auto"
    workers: Annotated[int, AtLeast(0)] = 0
    ray_address: str | None = None

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        super().__post_init__()
        if self.ray_address is not None and self.name != "ray":
            raise InputError(f"a Ray address is for engine ray, but the engine is {self.name}")

    def choose(self, trainer: Trainer, cohort: int | None = None) -> EngineChoice:
        """Return the engine for this model and for cohorts of about this size; None = size not known."""
        if trainer.training.arithmetic == "numpy" and self.name in ("processes", "ray"):
            raise InputError(
                f"arithmetic numpy trains a whole cohort at once in this process, but engine {self.name} came: leave "
                "the engine out, and have several runs at a time with --jobs, or take arithmetic torch"
            )
        if self.name == "ray":
            return EngineChoice("ray", self.workers, "as asked for", self.ray_address)
        if trainer.device_kind != "cpu":
            return self._on_gpus(trainer)
        workers = self.workers or cores()
        if self.name == "inline":
            return EngineChoice("inline", 1, "as asked for")
        if self.name == "processes":
            return EngineChoice("processes", workers, "as asked for")
        if trainer.stackable:
            return EngineChoice("inline", 1, "the model is small: a whole cohort is trained at once")
        if cohort == 1:
            return EngineChoice("inline", 1, "one client a round leaves nothing to spread")
        if workers == 1:
            return EngineChoice("inline", 1, "there is one core")
        return EngineChoice("processes", workers, f"clients are trained one by one, on {workers} cores")

    def _on_gpus(self, trainer: Trainer) -> EngineChoice:
        """Return the engine for clients that are trained on GPUs: by default one process per GPU."""
        workers, device = self.workers or trainer.gpus, trainer.device_name
        if self.name == "processes":
            return EngineChoice("processes", workers, "as asked for", device=device)
        if self.name == "inline" or workers == 1:
            why = "as asked for" if self.name == "inline" else "one GPU trains one client at a time"
            return EngineChoice("inline", 1, why, device=device)
        return EngineChoice("processes", workers, f"clients are trained by {workers} processes in turn", device=device)


@dataclass(frozen=True)
class EngineChoice:
    """The engine that a run uses, and why."""

    name: Literal["inline", "processes", "ray"]
    workers: int
    why: str
    ray_address: str | None = None
    device: str = "cpu"
    """Where clients are trained, and in which precision if it is not float32."""

    def build(self, trainer: Trainer) -> Engine:
        """Return the engine; it acquires its resources at first use."""
        if self.name == "inline":
            return Inline(trainer)
        if self.name == "ray":
            from fedpace.sim.engines.ray import Ray  # the one module that needs ray

            return Ray(trainer, self.workers, address=self.ray_address)
        from fedpace.sim.engines.processes import Processes

        return Processes(trainer, self.workers)

    def facts(self) -> dict[str, Any]:
        """Return the choice as a dict for the run's record."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
