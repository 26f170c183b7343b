"""`run_together` runs several jobs in parallel, each in a worker process with one thread.

Use it for models so small that one run cannot use all cores. A worker gets a job, reports each round, and asks for the
next job. The records are the same, byte for byte, as those of sequential runs, because runs share no random draws.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType

from fedpace._base.errors import FedpaceError
from fedpace.runner.jobs import Job, SharedData, with_data
from fedpace.runner.running import Execution, Watcher, run_job
from fedpace.sim.engines.threads import ONE_THREAD, environment, limit_to_one_thread

WORKER_PATIENCE = 20.0
"""Seconds that a worker has to record that it was interrupted."""


class WorkerError(FedpaceError, RuntimeError):
    """A worker process died, or raised an error that is not a `FedpaceError`."""


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    job: Job | None = None


def run_together(
    jobs: list[Job],
    execution: Execution,
    at_a_time: int,
    watch: Watcher | None = None,
    done: Callable[[Job], None] | None = None,
) -> None:
    """Run `jobs`, started in their order. The first error stops all workers; recorded rounds are kept."""
    waiting = list(reversed(jobs))
    workers = [_start(execution) for _ in range(at_a_time)]
    try:
        for worker in workers:
            _next_job(worker, waiting)
        while busy := [worker for worker in workers if worker.job is not None]:
            ready = wait([worker.pipe for worker in busy])
            for worker in busy:
                if worker.pipe in ready:
                    _listen(worker, waiting, watch, done)
        for worker in workers:
            worker.process.join(WORKER_PATIENCE)
    finally:
        _end(workers)


def _listen(worker: _Worker, waiting: list[Job], watch: Watcher | None, done: Callable[[Job], None] | None) -> None:
    job = worker.job
    assert job is not None
    try:
        kind, *content = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join(WORKER_PATIENCE)
        raise WorkerError(
            f"the process that ran {job.name} died with code {worker.process.exitcode}: "
            "is memory scarce? Ask for fewer jobs, and resume"
        ) from None
    if kind == "round":
        if watch is not None:
            which, current = content
            watch(job.all[which], current)
    elif kind == "done":
        if done is not None:
            done(job)
        _next_job(worker, waiting)
    elif kind == "refused":
        raise content[0]
    else:
        raise WorkerError(f"{job.name} failed:\n{content[0]}")


def _start(execution: Execution) -> _Worker:
    # Spawn instead of fork: a forked copy of a process with threads can hang on a lock that no thread releases.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, execution), daemon=True)
    with environment(ONE_THREAD):
        process.start()
    theirs.close()
    return _Worker(process, ours)


def _next_job(worker: _Worker, waiting: list[Job]) -> None:
    worker.job = waiting.pop() if waiting else None
    with contextlib.suppress(OSError):  # `_listen` reports a worker that died
        worker.pipe.send(worker.job)


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        worker.process.join(WORKER_PATIENCE)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.pipe.close()


def _work(pipe: Connection, execution: Execution) -> None:
    """Run jobs until there are no more; this is the main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent decides
    signal.signal(signal.SIGTERM, _interrupt)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    limit_to_one_thread()
    shared: SharedData | None = None
    with contextlib.suppress(KeyboardInterrupt, EOFError, BrokenPipeError):
        while (job := pipe.recv()) is not None:
            shared = shared or SharedData(job.experiment.data)
            _do(with_data(job, shared), execution, pipe)


def _do(job: Job, execution: Execution, pipe: Connection) -> None:
    places = {each.folder: place for place, each in enumerate(job.all)}
    try:
        run_job(job, execution, lambda each, current: pipe.send(("round", places[each.folder], current)))
    except FedpaceError as error:
        try:
            pipe.send(("refused", error))
        except (TypeError, AttributeError, ValueError):  # an error of a plug-in may not be picklable
            pipe.send(("refused", FedpaceError(str(error))))
    except (KeyboardInterrupt, BrokenPipeError):
        raise
    except Exception:
        pipe.send(("failed", traceback.format_exc()))
    else:
        pipe.send(("done",))


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _die_with_parent() -> None:
    """End this worker when its parent is killed, so that it does not write to a run that is being resumed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
