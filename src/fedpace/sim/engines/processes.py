"""`Processes`, the engine that computes tasks in worker processes, with one thread each.

The workers live until the engine is closed. They read data and parameters from shared memory, so a task is a short
message. The longest tasks start first. If a worker dies, it is replaced and its task is repeated; tasks are pure
functions, so the answers are the same.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from heapq import heappop, heappush
from multiprocessing.connection import Pipe, wait
from typing import Any, ClassVar

import torch

from fedpace._base.errors import InputError, OrderError
from fedpace.sim.engines.engine import ONE_THREAD, Engine, EngineTask, TrainTask, WorkerLostError
from fedpace.sim.engines.worker import FAILED, SharedArrays, WorkerSetup, share, unpack_answers
from fedpace.sim.trainers import Trainer

RETRIES = 3
"""How often a task is repeated after its worker died."""

MAX_ANSWER_BYTES = 2**29
"""Most bytes of answers that wait for their turn; limits how far workers run ahead of the next answer."""


class Processes(Engine):
    """Trains clients in parallel, one task per worker process.

    Args:
        trainer: the clients' data, model and training options.
        workers: number of processes.
    """

    name: ClassVar[str] = "processes"

    def __init__(self, trainer: Trainer, workers: int) -> None:
        super().__init__(trainer)
        module = type(trainer.model).__module__
        if module == "__main__":
            raise InputError(
                f"{type(trainer.model).__name__} is defined in the script that runs, which worker processes cannot "
                "import: put it into a module of its own, or use engine inline"
            )
        self.workers = workers
        self._pool: Pool | None = None

    def _run(self, parameters: torch.Tensor, tasks: Sequence[EngineTask]) -> Iterator[Sequence[Any]]:
        if self._pool is None:
            self._pool = Pool(self.trainer, self.workers)
        queue = Queue(tasks, self.trainer, max(2 * self.workers, MAX_ANSWER_BYTES // self._answer_bytes))
        with self._pool.reserved(parameters) as pool:
            for number in range(len(tasks)):
                while True:
                    for other, answers in pool.answers(wait_for_one=number not in queue.answered):
                        queue.settle(other, answers)
                    for worker, other in zip(pool.idle, queue.next(len(pool.idle), after=number), strict=False):
                        worker.begin(other, tasks[other])
                    if number in queue.answered:
                        break
                answers = queue.answered.pop(number)
                if isinstance(answers, Exception):
                    raise answers
                yield answers

    @property
    def _answer_bytes(self) -> int:
        return self.trainer.max_part_clients * self.trainer.message_bytes

    def close(self) -> None:
        """Stop the workers."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


class Queue:
    """Waiting tasks, longest first, and answers that wait for their turn.

    Args:
        tasks: the tasks, in the order in which their answers are needed.
        trainer: tells the cost of a task.
        ahead: how many tasks the workers may run ahead of the next answer.
    """

    def __init__(self, tasks: Sequence[EngineTask], trainer: Trainer, ahead: int) -> None:
        self._tasks = tasks
        self._ranks = [(-task.cost(trainer), number) for number, task in enumerate(tasks)]
        self._ahead = ahead
        self._within = 0
        self._waiting: list[tuple[float, int]] = []
        self._lost = Counter[int]()
        self.answered: dict[int, Any] = {}

    def next(self, count: int, *, after: int) -> list[int]:
        """Remove and return up to `count` tasks, none more than `ahead` after number `after`."""
        for rank in self._ranks[self._within : after + self._ahead]:
            heappush(self._waiting, rank)
        self._within = max(self._within, after + self._ahead)
        return [heappop(self._waiting)[1] for _ in range(min(count, len(self._waiting)))]

    def settle(self, number: int, answers: Any) -> None:
        """Store the answers to a task; if `answers` is None because its worker died, queue the task again."""
        if answers is not None:
            self.answered[number] = answers
            return
        self._lost[number] += 1
        if self._lost[number] > RETRIES:
            raise WorkerLostError(
                f"{self._lost[number]} worker processes died, one after the other, over {self._tasks[number]}: "
                "look for the reason (often too little memory), or use engine inline"
            )
        heappush(self._waiting, self._ranks[number])


class Pool:
    """The worker processes and the memory that they share; workers that die are replaced."""

    def __init__(self, trainer: Trainer, workers: int) -> None:
        self._arrays, setup = share(trainer, workers)
        self._parameters = torch.from_numpy(self._arrays["parameters"])
        self._reserved = False
        # Workers read from this pipe. It closes when this process ends for any reason, and then they end too.
        lifeline = os.pipe()
        self._workers = [Worker(number, self._arrays, setup, lifeline[0]) for number in range(workers)]
        self._finalizer = weakref.finalize(self, _end, self._workers, self._arrays, lifeline)

    @property
    def idle(self) -> list[Worker]:
        """Workers without a task."""
        return [worker for worker in self._workers if worker.task is None]

    @contextmanager
    def reserved(self, parameters: torch.Tensor) -> Iterator[Pool]:
        """Reserve the workers for tasks that start from `parameters`; cancel unfinished tasks at the end."""
        if self._reserved:
            raise OrderError("an engine answers one call at a time: read the answers to the one before to the end")
        self._reserved = True
        self._parameters.copy_(parameters)
        try:
            yield self
        finally:
            self._reserved = False
            for worker in self._workers:
                if worker.task is not None:
                    worker.stop()

    def answers(self, *, wait_for_one: bool) -> Iterator[tuple[int, Any]]:
        """Yield (task number, answers) of finished tasks; the answers are None if the worker died."""
        busy = {worker.connection: worker for worker in self._workers if worker.task is not None}
        for connection in wait(list(busy), None if wait_for_one and busy else 0):
            yield busy[connection].end()  # type: ignore[index]

    def close(self) -> None:
        """Stop the workers and release the memory."""
        self._finalizer()


class Worker:
    """One worker process and its current task."""

    def __init__(self, number: int, arrays: SharedArrays, setup: WorkerSetup, lifeline: int) -> None:
        self._number = number
        self._arrays = arrays
        self._briefing = pickle.dumps(setup)
        self._lifeline = lifeline
        self._answer_rows = torch.from_numpy(arrays[f"answers {number}"])
        self._process: subprocess.Popen[bytes] | None = None
        self.task: tuple[int, EngineTask] | None = None
        self._start()

    def _start(self) -> None:
        self.connection, theirs = Pipe()
        descriptors = (theirs.fileno(), self._arrays.file, self._lifeline)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedpace.sim.engines.worker", *map(str, (*descriptors, self._number))],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches only the main process, which then stops its workers
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **ONE_THREAD},
        )
        theirs.close()
        self._send(self._briefing)

    def begin(self, number: int, task: EngineTask) -> None:
        """Send a task to the process; start a new process if the last one died."""
        if self._process is None:
            self._start()
        self.task = (number, task)
        corrected = isinstance(task, TrainTask) and task.corrections is not None
        if isinstance(task, TrainTask) and task.corrections is not None:
            self._answer_rows[: len(task.corrections)].copy_(task.corrections)
            task = replace(task, corrections=None)
        self._send(pickle.dumps((task, corrected)))

    def end(self) -> tuple[int, Any]:
        """Return the task's number and its answers, or its exception, or None if the worker died."""
        assert self.task is not None
        number, task = self.task
        try:
            kind, message = pickle.loads(self.connection.recv_bytes())  # noqa: S301  from a process of ours
        except (EOFError, OSError):
            self.stop()
            return number, None
        self.task = None
        return number, message if kind == FAILED else unpack_answers(message, self._answer_rows, task)

    def stop(self) -> None:
        """Kill the process and drop its task."""
        self.task = None
        if self._process is not None:
            self.connection.close()
            self._process.kill()
            self._process.wait()
            self._process = None

    def _send(self, message: bytes) -> None:
        try:
            self.connection.send_bytes(message)
        except OSError:
            return  # the worker died: `end` reports it


def _end(workers: Sequence[Worker], arrays: SharedArrays, lifeline: tuple[int, int]) -> None:
    for worker in workers:
        worker.stop()
    arrays.close()
    for descriptor in lifeline:
        os.close(descriptor)
