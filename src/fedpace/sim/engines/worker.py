"""The program of a worker process, and the memory that it shares with the main process.

A worker gets the data once, then answers tasks until the connection closes. `processes.py` starts it as a separate
program. It does not fork, because torch cannot compute gradients in a fork of a process that has computed some. It does
not use `multiprocessing`, which would run the user's main module again.

The shared memory has no name in the file system. The operating system frees it with the last process that has it open,
so nothing is left behind after a crash.
"""

from __future__ import annotations

import mmap
import os
import pickle
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedpace.data.federated import FederatedData, Samples
from fedpace.models.contract import ModelConfig
from fedpace.sim.engines.engine import EngineTask, TrainTask
from fedpace.sim.torch_trainer import TorchTrainer
from fedpace.sim.trainers import Trainer
from fedpace.sim.training import LocalResult, Training

ALIGNED = 64
"""Alignment of every array in bytes, as in torch: the rounding of some kernels depends on it."""


@dataclass(frozen=True)
class Place:
    """Position, shape and type of an array in the shared memory."""

    offset: int
    shape: tuple[int, ...]
    dtype: str


class SharedArrays:
    """Named arrays in shared memory.

    Args:
        file: file descriptor of the memory; this object owns it.
        places: name -> place of each array.
    """

    def __init__(self, file: int, places: Mapping[str, Place]) -> None:
        self.file = file
        self.places = dict(places)
        self._map = mmap.mmap(file, max(_end(place) for place in places.values()))

    @classmethod
    def create(cls, arrays: Mapping[str, tuple[tuple[int, ...], Any]]) -> SharedArrays:
        """Allocate arrays of these shapes and types, filled with 0."""
        places: dict[str, Place] = {}
        end = 0
        for name, (shape, dtype) in arrays.items():
            places[name] = Place(-(-end // ALIGNED) * ALIGNED, tuple(shape), np.dtype(dtype).str)
            end = _end(places[name])
        file = _anonymous_file()
        os.ftruncate(file, end)
        return cls(file, places)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return the array of this name."""
        place = self.places[name]
        flat = np.frombuffer(self._map, dtype=place.dtype, count=prod(place.shape), offset=place.offset)
        return flat.reshape(place.shape)

    def close(self) -> None:
        """Close the file descriptor; the memory lives as long as one of its arrays."""
        os.close(self.file)


def _end(place: Place) -> int:
    return place.offset + max(1, prod(place.shape) * np.dtype(place.dtype).itemsize)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fedpace")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


FINISHED, FAILED = "finished", "failed"


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker needs besides the shared arrays."""

    places: dict[str, Place]
    sizes: tuple[int, ...]
    """Number of samples of each client."""
    data: dict[str, Any]
    """The other fields of `FederatedData`."""
    model: ModelConfig
    training: Training
    seed: int


def share(trainer: Trainer, workers: int) -> tuple[SharedArrays, WorkerSetup]:
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
            **{f"answers {worker}": ((trainer.max_part_clients, length), np.float32) for worker in range(workers)},
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
    return arrays, WorkerSetup(arrays.places, sizes, others, trainer.model, trainer.training, trainer.seed)


def layer_positions(answers: Sequence[Any], buffer: torch.Tensor) -> list[Any]:
    """Copy the models or gradients in `answers` to the shared array `buffer`; return the rest, which must be sent."""
    left: list[Any] = []
    for row, answer in zip(buffer, answers, strict=False):
        if isinstance(answer, LocalResult):
            row.copy_(answer.parameters)
            left.append((answer.loss, answer.steps))
        elif isinstance(answer, torch.Tensor):
            row.copy_(answer)
            left.append(None)
        else:
            left.append(answer)
    return left


def unpack_answers(left: Sequence[Any], buffer: torch.Tensor, task: EngineTask) -> list[Any]:
    """Rebuild the answers that `layer_positions` took apart."""
    if isinstance(task, TrainTask):
        return [LocalResult(row.clone(), *other) for row, other in zip(buffer, left, strict=False)]
    return [row.clone() if other is None else other for row, other in zip(buffer, left, strict=False)]


def work(connection: Connection, file: int, number: int) -> None:
    """Answer the tasks that arrive on `connection`, until it closes."""
    setup: WorkerSetup = pickle.loads(connection.recv_bytes())  # noqa: S301  from the process that started this one
    arrays = SharedArrays(file, setup.places)
    trainer = build_trainer(arrays, setup, worker=number)
    parameters = torch.from_numpy(arrays["parameters"])
    buffer = torch.from_numpy(arrays[f"answers {number}"])
    while True:
        task, corrected = pickle.loads(connection.recv_bytes())  # noqa: S301
        if corrected:
            task = replace(task, corrections=buffer[: len(task.clients)].clone())
        try:
            left = layer_positions(task.run(trainer, parameters), buffer)
        except Exception as error:  # the engine raises it in the main process
            connection.send_bytes(pickle.dumps((FAILED, _sendable(error))))
        else:
            connection.send_bytes(pickle.dumps((FINISHED, left)))


def build_trainer(
    arrays: SharedArrays | Mapping[str, NDArray[Any]], setup: WorkerSetup, *, worker: int = 0
) -> TorchTrainer:
    """Return a trainer equal to the one given to `share`, on the shared arrays without copies.

    With several GPUs, worker number i uses GPU number i modulo their number.
    """
    inputs, targets = arrays["inputs"], arrays["targets"]
    ends = np.cumsum(setup.sizes).tolist()
    train = tuple(
        Samples(inputs[end - size : end], targets[end - size : end])
        for size, end in zip(setup.sizes, ends, strict=True)
    )
    test = Samples(arrays["test inputs"], arrays["test targets"])
    data = FederatedData(train=train, test=test, **setup.data)
    return TorchTrainer(data, setup.model, setup.training, seed=setup.seed, worker=worker)


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
