"""`Ray`, the engine that computes tasks on a Ray cluster of one or more machines.

Data and model options go into Ray's object store once; each machine keeps one copy, which its workers share. Parameters
go there once per call. The engine uses Ray tasks rather than actors. So Ray repeats the task of a lost worker or
machine elsewhere, and machines may join and leave. Each task uses one core and one thread, and carries only client
numbers.
"""

from __future__ import annotations

import logging
import shutil
import socket
import sys
import tempfile
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray

from fedpace._base.errors import InputError, MissingExtraError
from fedpace.sim.engines.engine import Engine, EngineTask, WorkerLostError, cores, environment, one_thread
from fedpace.sim.engines.worker import WorkerSetup, build_trainer, share
from fedpace.sim.trainers import Trainer

try:
    import ray
    from ray._private import ray_constants
    from ray._private import worker as ray_worker
    from ray.exceptions import RayError, RayTaskError
except ModuleNotFoundError as cause:
    raise MissingExtraError("engine ray", "ray", "ray") from cause

RETRIES = 3
"""How often a task is repeated after its worker died."""

CONNECT_SECONDS = 10.0
"""Seconds to wait for a connection to a cluster."""

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # send no usage statistics
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # no warning about a future change
}
"""Environment variables for every Ray connection."""

LOCAL_ONLY = {ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}
"""Environment variables for a cluster that this process starts: Ray listens on the loopback interface only."""


class Ray(Engine):
    """Computes tasks on the free cores of a Ray cluster.

    Args:
        trainer: the clients' data, model and training options.
        workers: number of tasks in parallel; 0 = one per core of the cluster.
        address: address of a running cluster, `auto` for the one that this machine belongs to; None = start one on this
            machine, which ends when the engine is closed.
    """

    name: ClassVar[str] = "ray"

    def __init__(self, trainer: Trainer, workers: int = 0, *, address: str | None = None) -> None:
        super().__init__(trainer)
        self.workers = workers
        self.address = address
        self._cluster: Cluster | None = None
        self._worker_inputs: Any = None

    def _run(self, parameters: torch.Tensor, tasks: Sequence[EngineTask]) -> Iterator[Sequence[Any]]:
        if self._cluster is None:
            self._cluster = Cluster(self.address, self.workers)
            self._worker_inputs = ray.put(_worker_inputs(self.trainer))
        received = ray.put(parameters.numpy())
        # Longest first, so that no long task runs alone at the end.
        waiting = deque(sorted(range(len(tasks)), key=lambda index: -tasks[index].cost(self.trainer)))
        at_once = self.workers or len(tasks)
        running: dict[Any, int] = {}
        answered: dict[int, Any] = {}
        try:
            for index, task in enumerate(tasks):
                while index not in answered:
                    while waiting and len(running) < at_once:
                        chosen = waiting.popleft()
                        running[_work.remote([self._worker_inputs], received, tasks[chosen])] = chosen
                    # Answers stay in the object store until their turn, because this process may have less memory.
                    for reference in ray.wait(list(running), fetch_local=False)[0]:
                        answered[running.pop(reference)] = reference
                yield _fetched(answered.pop(index), task)
        finally:
            if ray.is_initialized():  # otherwise the calls below would start Ray again
                for reference in running:
                    # By force: an interrupted worker would stay alive, possibly with half-imported modules.
                    ray.cancel(reference, force=True)

    def close(self) -> None:
        """Disconnect from the cluster, and stop it if this process started it."""
        self._worker_inputs = None
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None


class Cluster:
    """A connection to Ray: the one that this process already has, a running cluster, or a new local cluster."""

    def __init__(self, address: str | None, workers: int) -> None:
        self._folder: Path | None = None
        self._ours = not ray.is_initialized()
        if not self._ours:
            return
        ray_worker.print_worker_logs = _to_standard_error
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address is not None:
            try:
                _check_reachable(address)
                with environment(QUIET):
                    ray.init(address=address, **quiet)
            except (OSError, ValueError) as cause:
                raise InputError(
                    f"no Ray cluster was found at {address!r}: start one (`ray start --head`), or give no address to "
                    f"have one on this machine ({cause})"
                ) from cause
            return
        # A private folder with a short path: Ray puts sockets there, and socket paths have a length limit.
        self._folder = Path(tempfile.mkdtemp(prefix="fedpace-ray-"))
        with environment(QUIET | LOCAL_ONLY), loopback():
            ray.init(
                address="local",
                num_cpus=workers or cores(),
                include_dashboard=False,
                _temp_dir=str(self._folder),
                **quiet,
            )

    def close(self) -> None:
        """Stop what this object started, nothing else."""
        if self._ours:
            ray.shutdown()
            ray_worker.print_worker_logs = _print_worker_logs
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _check_reachable(address: str) -> None:
    """Raise an OSError if no server listens at HOST:PORT; Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()


# By default Ray gives all short tasks to the node where it already has a worker.
@ray.remote(num_cpus=1, max_retries=RETRIES, scheduling_strategy="SPREAD")
def _work(worker_inputs: list[Any], parameters: NDArray[Any], task: EngineTask) -> Sequence[Any]:
    """Compute a task. The list around the worker_inputs' reference keeps Ray from fetching them for every task."""
    with one_thread():
        return task.run(_trainer(worker_inputs[0]), torch.tensor(parameters))


def _worker_inputs(trainer: Trainer) -> tuple[dict[str, NDArray[Any]], WorkerSetup]:
    """Return what a worker needs, with the data in a few large arrays that the object store shares without copies."""
    arrays, setup = share(trainer, workers=0)
    arrays.close()  # the arrays stay valid
    return {name: arrays[name] for name in arrays.places}, setup


@lru_cache(maxsize=1)
def _trainer(worker_inputs: Any) -> Trainer:
    """Return the worker's trainer; each worker builds it once."""
    with warnings.catch_warnings():
        # The object store's arrays are read-only, and nothing writes to them.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return build_trainer(*ray.get(worker_inputs))


def _fetched(reference: Any, task: EngineTask) -> Sequence[Any]:
    """Return the answers to a task, or raise its exception."""
    try:
        answers: Sequence[Any] = ray.get(reference)
    except RayTaskError as failure:
        raise failure.cause from None
    except RayError as failure:
        raise WorkerLostError(
            f"{1 + RETRIES} Ray workers died, one after the other, over {task}: look for the reason (often too little "
            f"memory) in Ray's logs ({type(failure).__name__})"
        ) from failure
    return answers


_print_worker_logs = ray_worker.print_worker_logs


def _to_standard_error(data: dict[str, str], print_file: Any, ignore_prefix: bool = False) -> None:
    """Print Ray's messages about lost workers to standard error, apart from a command's output."""
    _print_worker_logs(data, sys.stderr, ignore_prefix)


@contextmanager
def loopback() -> Iterator[None]:
    """Do the same as `LOCAL_ONLY` if Ray was imported earlier and has already read the environment."""
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
