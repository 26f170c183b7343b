"""The program of a worker process: it gets the data once, then answers tasks until the connection closes.

`processes.py` starts it as a separate program. It does not fork, because torch cannot compute gradients in a fork of a
process that has computed some. It does not use `multiprocessing`, which would run the user's main module again.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedpace.data.federated import FederatedData, Samples
from fedpace.models.base import ModelConfig
from fedpace.sim.engines.memory import Place, SharedArrays
from fedpace.sim.engines.tasks import Task, TrainTask
from fedpace.sim.trainer import Trainer
from fedpace.sim.trainers import AnyTrainer
from fedpace.sim.training import LocalResult, Training

FINISHED, FAILED = "finished", "failed"


@dataclass(frozen=True)
class Briefing:
    """What a worker needs besides the shared arrays."""

    places: dict[str, Place]
    sizes: tuple[int, ...]
    """Number of samples of each client."""
    data: dict[str, Any]
    """The other fields of `FederatedData`."""
    model: ModelConfig
    training: Training
    seed: int


def share(trainer: AnyTrainer, workers: int) -> tuple[SharedArrays, Briefing]:
    """Copy the data to shared memory, and reserve space for the parameters and for each worker's answers."""
    data, length = trainer.data, trainer.initial.numel()
    first, sizes = data.train[0], tuple(len(samples) for samples in data.train)
    arrays = SharedArrays.create(
        {
            "inputs": ((sum(sizes), *first.inputs.shape[1:]), first.inputs.dtype),
            "targets": ((sum(sizes),), first.targets.dtype),
            "test inputs": (data.test.inputs.shape, data.test.inputs.dtype),
            "test targets": (data.test.targets.shape, data.test.targets.dtype),
            "parameters": ((length,), np.float32),
            **{f"answers {worker}": ((trainer.largest_part, length), np.float32) for worker in range(workers)},
        }
    )
    inputs, targets = arrays["inputs"], arrays["targets"]
    start = 0
    for samples in data.train:
        inputs[start : start + len(samples)] = samples.inputs
        targets[start : start + len(samples)] = samples.targets
        start += len(samples)
    arrays["test inputs"][:] = data.test.inputs
    arrays["test targets"][:] = data.test.targets
    others = {field: getattr(data, field) for field in ("name", "classes", "metric", "loss_scale", "test_sizes")}
    return arrays, Briefing(arrays.places, sizes, others, trainer.model, trainer.training, trainer.seed)


def lay_out(answers: Sequence[Any], room: torch.Tensor) -> list[Any]:
    """Copy the models or gradients in `answers` to the shared array `room`; return the rest, which must be sent."""
    left: list[Any] = []
    for row, answer in zip(room, answers, strict=False):
        if isinstance(answer, LocalResult):
            row.copy_(answer.parameters)
            left.append((answer.loss, answer.steps))
        elif isinstance(answer, torch.Tensor):
            row.copy_(answer)
            left.append(None)
        else:
            left.append(answer)
    return left


def put_together(left: Sequence[Any], room: torch.Tensor, task: Task) -> list[Any]:
    """Rebuild the answers that `lay_out` took apart."""
    if isinstance(task, TrainTask):
        return [LocalResult(row.clone(), *other) for row, other in zip(room, left, strict=False)]
    return [row.clone() if other is None else other for row, other in zip(room, left, strict=False)]


def work(connection: Connection, file: int, number: int) -> None:
    """Answer the tasks that arrive on `connection`, until it closes."""
    briefing: Briefing = pickle.loads(connection.recv_bytes())  # noqa: S301  from the process that started this one
    arrays = SharedArrays(file, briefing.places)
    trainer = briefed_trainer(arrays, briefing)
    parameters = torch.from_numpy(arrays["parameters"])
    room = torch.from_numpy(arrays[f"answers {number}"])
    while True:
        task, corrected = pickle.loads(connection.recv_bytes())  # noqa: S301
        if corrected:
            task = replace(task, corrections=room[: len(task.clients)].clone())
        try:
            left = lay_out(task.run(trainer, parameters), room)
        except Exception as error:  # the engine raises it in the main process
            connection.send_bytes(pickle.dumps((FAILED, _sendable(error))))
        else:
            connection.send_bytes(pickle.dumps((FINISHED, left)))


def briefed_trainer(arrays: SharedArrays | Mapping[str, NDArray[Any]], briefing: Briefing) -> Trainer:
    """Return a trainer equal to the one given to `share`, on the shared arrays without copies."""
    inputs, targets = arrays["inputs"], arrays["targets"]
    ends = np.cumsum(briefing.sizes).tolist()
    train = tuple(
        Samples(inputs[end - size : end], targets[end - size : end])
        for size, end in zip(briefing.sizes, ends, strict=True)
    )
    test = Samples(arrays["test inputs"], arrays["test targets"])
    data = FederatedData(train=train, test=test, **briefing.data)
    return Trainer(data, briefing.model, briefing.training, seed=briefing.seed)


def _sendable(error: Exception) -> Exception:
    """Return the error, or a RuntimeError with the same text if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _end_with_parent(lifeline: int) -> None:
    """End this process when the main process ends for any reason, which closes the other end of `lifeline`."""
    os.read(lifeline, 1)
    os._exit(1)


def main() -> None:
    """Run the worker until the connection closes."""
    socket, file, lifeline, number = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    connection = Connection(socket)
    try:
        work(connection, file, number)
    except (EOFError, OSError):
        return
    except Exception as error:  # such as a model that cannot be imported here
        connection.send_bytes(pickle.dumps((FAILED, _sendable(error))))


if __name__ == "__main__":
    main()
