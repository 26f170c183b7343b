"""The engine that works in processes of its own, one core and one thread each.

They live as long as the engine is open and see data and parameters through shared memory, so that no more than a few
numbers travel for a task. The longest tasks go first. A worker that dies is replaced and its task done again: tasks
are pure, so the answers are the same.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Pipe, wait
from typing import Any, ClassVar

import torch

from fedpace.core.errors import InputError, OrderError
from fedpace.sim.engines.base import Engine
from fedpace.sim.engines.errors import WorkerLostError
from fedpace.sim.engines.memory import SharedArrays
from fedpace.sim.engines.tasks import Task, TrainTask
from fedpace.sim.engines.worker import FAILED, Briefing, put_together, share
from fedpace.sim.trainer import Trainer

RETRIES = 3
"""Times that a task is given to another worker when the one that had it died."""

ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Variables that keep a worker's libraries from starting threads."""

KEPT = 2**29
"""Bytes of answers that wait for their turn at the most: how far ahead of the first that is missing work may run."""


class Processes(Engine):
    """Trains as many clients at a time as there are workers.

    Args:
        trainer: the data, the model and the options of the clients.
        workers: processes.
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

    def _run(self, parameters: torch.Tensor, tasks: Sequence[Task]) -> Iterator[Sequence[Any]]:
        if self._pool is None:
            self._pool = Pool(self.trainer, self.workers)
        pool = self._pool
        pool.parameters = parameters
        costs = [task.cost(self.trainer) for task in tasks]
        ahead = max(2 * self.workers, KEPT // (self.trainer.largest_part * self.trainer.message_bytes))
        waiting, answered, lost = list(range(len(tasks))), dict[int, Any](), dict[int, int]()
        try:
            for index in range(len(tasks)):
                while index not in answered:
                    for worker in pool.idle:
                        near = [number for number in waiting if number < index + ahead]
                        if not near:
                            break
                        chosen = max(near, key=lambda number: (costs[number], -number))
                        waiting.remove(chosen)
                        worker.begin(chosen, tasks[chosen])
                    for number, answers in pool.next_answers():
                        if answers is not None:
                            answered[number] = answers
                            continue
                        lost[number] = lost.get(number, 0) + 1
                        if lost[number] > RETRIES:
                            raise WorkerLostError(
                                f"{lost[number]} worker processes died, one after the other, over {tasks[number]}: "
                                "look for the reason (often too little memory), or use engine inline"
                            )
                        waiting.append(number)
                answers = answered.pop(index)
                if isinstance(answers, Exception):
                    raise answers
                yield answers
        finally:
            pool.forget()

    def close(self) -> None:
        """End the workers."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


class Pool:
    """Workers, replaced as they die, and the memory that they share."""

    def __init__(self, trainer: Trainer, workers: int) -> None:
        self._arrays, briefing = share(trainer, workers)
        self._parameters = torch.from_numpy(self._arrays["parameters"])
        # Workers watch the reading end: however this process ends, they do.
        lifeline = os.pipe()
        self._workers = [Worker(number, self._arrays, briefing, lifeline[0]) for number in range(workers)]
        self._finalizer = weakref.finalize(self, _end, self._workers, self._arrays, lifeline)

    @property
    def idle(self) -> list[Worker]:
        """Workers without a task."""
        return [worker for worker in self._workers if worker.task is None]

    @property
    def parameters(self) -> torch.Tensor:
        """What tasks start from."""
        return self._parameters

    @parameters.setter
    def parameters(self, values: torch.Tensor) -> None:
        if len(self.idle) < len(self._workers):
            raise OrderError("an engine answers one call at a time: read the answers to the one before to the end")
        self._parameters.copy_(values)

    def next_answers(self) -> Iterator[tuple[int, Any]]:
        """Wait until a worker is done; yield numbers of tasks with their answers, None where a worker died."""
        busy = {worker.connection: worker for worker in self._workers if worker.task is not None}
        for connection in wait(list(busy)):
            yield busy[connection].end()  # type: ignore[index]

    def forget(self) -> None:
        """Stop what nobody waits for any more, as after an error."""
        for worker in self._workers:
            if worker.task is not None:
                worker.stop()

    def close(self) -> None:
        """End the workers and give the memory back."""
        self._finalizer()


class Worker:
    """One process, and what it is at."""

    def __init__(self, number: int, arrays: SharedArrays, briefing: Briefing, lifeline: int) -> None:
        self._number = number
        self._arrays = arrays
        self._briefing = pickle.dumps(briefing)
        self._lifeline = lifeline
        self._room = torch.from_numpy(arrays[f"answers {number}"])
        self._process: subprocess.Popen[bytes] | None = None
        self.task: tuple[int, Task] | None = None
        self._start()

    def _start(self) -> None:
        self.connection, theirs = Pipe()
        descriptors = (theirs.fileno(), self._arrays.file, self._lifeline)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedpace.sim.engines.worker", *map(str, (*descriptors, self._number))],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the process that was started, which then ends its workers
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **dict.fromkeys(ONE_THREAD, "1")},
        )
        theirs.close()
        self._send(self._briefing)

    def begin(self, number: int, task: Task) -> None:
        """Send a task, to a new process if the one before has died."""
        if self._process is None:
            self._start()
        self.task = (number, task)
        corrected = isinstance(task, TrainTask) and task.corrections is not None
        if isinstance(task, TrainTask) and task.corrections is not None:
            self._room[: len(task.corrections)].copy_(task.corrections)
            task = replace(task, corrections=None)
        self._send(pickle.dumps((task, corrected)))

    def end(self) -> tuple[int, Any]:
        """Return the number of the task with its answers, with what it raised, or with None if the worker died."""
        assert self.task is not None
        number, task = self.task
        try:
            kind, message = pickle.loads(self.connection.recv_bytes())  # noqa: S301  from a process of ours
        except (EOFError, OSError):
            self.stop()
            return number, None
        self.task = None
        return number, message if kind == FAILED else put_together(message, self._room, task)

    def stop(self) -> None:
        """End the process; it has nothing to lose."""
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
            return  # it died: whoever waits for its answer is told


def _end(workers: Sequence[Worker], arrays: SharedArrays, lifeline: tuple[int, int]) -> None:
    for worker in workers:
        worker.stop()
    arrays.close()
    for descriptor in lifeline:
        os.close(descriptor)
