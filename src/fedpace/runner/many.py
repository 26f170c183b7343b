"""`run_plan` and `resume` run all jobs of a comparison, one after the other or in parallel.

Models so small that one run cannot use all cores run in parallel (`run_together`), each in a worker process with one
thread. The records are the same, byte for byte, because runs share no random draws. `estimate_duration` times a few
rounds of each scheme.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

import numpy as np

from fedpace._base.errors import FedpaceError, InputError
from fedpace.config import Experiment
from fedpace.records.run import Round, RunRecord, read_run
from fedpace.runner.jobs import Job, Plan, PlanState, SharedData, pending, sharing, unshared, with_data
from fedpace.runner.single import Execution, Watcher, clear_folder, run_job, sweep, take_back_plan, time_of
from fedpace.sim.clock import VirtualTime
from fedpace.sim.engines.engine import ONE_THREAD, EngineOptions, cores, environment, limit_to_one_thread
from fedpace.sim.rounds import check_scheme, settings
from fedpace.sim.trainers import Trainer, trainer_for

WORTHWHILE_SECONDS = 15.0
"""Remaining seconds of work above which worker processes are worth their start-up time."""

Done = Callable[[Job], None]
"""Called when a job, and all jobs reclocked from it, are done."""


def run_all(
    experiment: Experiment,
    folder: Path,
    watch: Watcher | None = None,
    *,
    execution: Execution | None = None,
    jobs: int = 1,
    overwrite: bool = False,
) -> list[RunRecord]:
    """Run every scheme under every seed; see `run_plan`."""
    return run_plan(Plan.under([experiment]), folder, watch, execution=execution, jobs=jobs, overwrite=overwrite)


def run_plan(
    plan: Plan,
    folder: Path,
    watch: Watcher | None = None,
    done: Done | None = None,
    *,
    execution: Execution | None = None,
    jobs: int = 1,
    overwrite: bool = False,
) -> list[RunRecord]:
    """Run all runs of a plan into `folder`, and return the records.

    Args:
        plan: the runs.
        folder: folder for the records; it must not contain runs.
        watch: called after every round.
        done: called after every job.
        execution: how to run; it does not change the results.
        jobs: number of parallel runs, each in its own process; 0 = one per core if a single run cannot use all cores.
        overwrite: remove the runs in the folder, after all schemes have passed the checks.
    """
    execution = execution or Execution()
    wanted = sharing(plan.jobs(folder))
    useful = check_jobs(wanted, execution, jobs)
    if overwrite:
        clear_folder(folder)
    created = [each for each in (folder, *folder.parents) if not each.exists()]
    plan.save(folder)
    try:
        return _run_jobs(wanted, execution, useful, watch, done, spread_later=jobs == 0)
    except FedpaceError:
        take_back_plan(folder, created)
        raise


def resume(
    folder: Path,
    watch: Watcher | None = None,
    done: Done | None = None,
    *,
    execution: Execution | None = None,
    jobs: int = 1,
    begun: PlanState | None = None,
) -> list[RunRecord]:
    """Finish the run or the comparison in `folder`, and return all its records.

    Each unfinished run continues from its last checkpoint, and missing runs are started. The arguments are those of
    `run_plan`; `begun` is the result of `pending(folder)`, if you have called it already.
    """
    execution = execution or Execution()
    begun = begun or pending(folder)
    if folder.is_dir():
        sweep(folder)
    found = dict(begun.records)
    if left := sharing(begun.left):
        records = _run_jobs(left, execution, check_jobs(left, execution, jobs), watch, done, spread_later=jobs == 0)
        found |= zip((each.folder for job in left for each in job.all), records, strict=True)
    return [found[each.folder] for each in begun.runs]


def check_jobs(jobs: list[Job], execution: Execution, at_a_time: int) -> int:
    """Check all schemes before the first run; return how many runs to do in parallel.

    The checks build one model and one data set, those of the first seed, and the first run uses the same data.
    """
    if at_a_time < 0:
        raise InputError(f"jobs must be at least 1, or 0 for as many as are useful, but {at_a_time} came")
    if at_a_time > 1 and execution.engine.name not in ("auto", "inline"):
        raise InputError(
            f"{at_a_time} jobs at a time share the cores already: leave out engine {execution.engine.name}, or the jobs"
        )
    first: dict[tuple[str, str], Job] = {}
    for job in jobs:
        for each in job.all:
            first.setdefault((each.title, each.scheme.label), each)
    grounds: list[tuple[Experiment, Trainer, VirtualTime]] = []
    engines = set()
    for job in first.values():
        trainer, clocked = _grounds(job.experiment, jobs[0].seed, grounds)
        settings(job.scheme.selector, trainer, clocked, job.experiment.fleet, seed=job.seed)
        engines.add(check_scheme(job.scheme.selector, trainer, execution.engine).name)
    useful = cores() if engines == {"inline"} else 1
    return min(at_a_time or useful, len(jobs))


def _grounds(
    asked: Experiment, seed: int, known: list[tuple[Experiment, Trainer, VirtualTime]]
) -> tuple[Trainer, VirtualTime]:
    """Return the trainer and the clock of an experiment under a seed; `known` caches them."""
    for experiment, trainer, clocked in known:
        if experiment is asked:
            return trainer, clocked
    alike = (
        trainer
        for experiment, trainer, _ in known
        if (experiment.data, experiment.model, experiment.training) == (asked.data, asked.model, asked.training)
    )
    trainer = next(alike, None) or trainer_for(asked.data.build(seed=seed), asked.model, asked.training, seed=seed)
    known.append((asked, trainer, time_of(asked, seed, trainer.message_bytes)))
    return known[-1][1:]


def _run_jobs(
    jobs: list[Job],
    execution: Execution,
    at_a_time: int,
    watch: Watcher | None,
    done: Done | None,
    *,
    spread_later: bool,
) -> list[RunRecord]:
    """Run `jobs`. With `spread_later`, run the first here, and the others in parallel if enough work remains."""
    left, records = list(jobs), []
    if at_a_time == 1 or spread_later:
        began = time.monotonic()
        for count, job in enumerate(jobs, start=1):
            records += run_job(job, execution, watch)
            left = jobs[count:]
            if done is not None:
                done(job)
            if at_a_time > 1 and len(left) > 1 and (time.monotonic() - began) / count * len(left) > WORTHWHILE_SECONDS:
                break
    if left:
        alone = replace(execution, engine=EngineOptions("inline"))
        run_together(unshared(left), alone, at_a_time, watch, done)
    return records + [read_run(each.folder) for job in left for each in job.all]


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


ROUNDS = 3
"""Rounds of each scheme that are timed."""
PATIENCE = 20.0
"""Seconds after which the timing of a scheme stops, even with fewer rounds."""


@dataclass(frozen=True)
class SchemeForecast:
    """Estimated duration of one scheme."""

    label: str
    engine: str
    clients_per_round: float
    seconds_per_round: float
    """Real seconds, including evaluation."""
    seconds: float
    """Real seconds of all runs of the scheme, each up to the round limit."""


@dataclass(frozen=True)
class Forecast:
    """The size of a comparison, and its longest duration."""

    name: str
    delays: tuple[str, ...]
    seeds: tuple[int, ...]
    clients: int
    model_bytes: int
    max_rounds: int
    target: float | None
    runs: int
    runs_at_a_time: int
    schemes: tuple[SchemeForecast, ...]
    seconds: float
    """Real seconds of the whole comparison; runs that hold their target end earlier."""

    def title(self) -> str:
        """Return one line that describes the comparison."""
        return (
            f"{self.name}: {_several(len(self.schemes), 'scheme')} x {_several(len(self.seeds), 'seed')} under "
            f"{', '.join(self.delays)} "
            f"delays, {self.clients} clients, {self.model_bytes:,} bytes of model, {self.max_rounds} rounds at most"
        )

    def sentence(self) -> str:
        """Return a sentence about the duration."""
        early = "; runs that hold their target end earlier" if self.target is not None else ""
        return (
            f"{self.runs} runs, {self.runs_at_a_time} at a time: at most about {duration_text(self.seconds)}{early}. "
            "Nothing was written."
        )


def estimate_duration(
    plan: Plan, watch: Watcher | None = None, *, execution: Execution | None = None, jobs: int = 1
) -> Forecast:
    """Run a few rounds of each scheme under the first seed, and return the estimate for the whole plan."""
    execution = execution or Execution()
    wanted = sharing(plan.jobs(Path()))
    at_a_time = check_jobs(wanted, execution, jobs)
    first = wanted[0].experiment
    found: list[SchemeForecast] = []
    for scheme in first.schemes:
        mine = [job for job in wanted if job.scheme.label == scheme.label]
        found.append(_timed(mine, execution, watch, first.stop.max_rounds))
    simulation = wanted[0].simulation(execution.engine)
    with closing(simulation.engine):
        size = simulation.trainer.message_bytes
    return Forecast(
        name=first.name,
        delays=tuple(experiment.delays.name for experiment in plan.experiments.values()),
        seeds=first.seeds,
        clients=simulation.trainer.data.clients,
        model_bytes=size,
        max_rounds=first.stop.max_rounds,
        target=first.stop.target,
        runs=plan.runs,
        runs_at_a_time=at_a_time,
        schemes=tuple(found),
        seconds=sum(each.seconds for each in found) / at_a_time,
    )


def _timed(jobs: list[Job], execution: Execution, watch: Watcher | None, rounds: int) -> SchemeForecast:
    job = jobs[0]
    simulation = job.simulation(execution.engine)
    played: list[Round] = []
    began = time.monotonic()
    with closing(simulation.rounds(job.experiment.stop.evaluates)) as playing:
        for current in playing:
            if current.number == 0:
                began = time.monotonic()  # exclude the start of the engine
                continue
            played.append(current)
            if watch is not None:
                watch(job, current)
            if len(played) >= min(ROUNDS, rounds) or time.monotonic() - began > PATIENCE:
                break
    each = (time.monotonic() - began) / len(played)
    return SchemeForecast(
        label=job.scheme.label,
        engine=simulation.engine_choice.name,
        clients_per_round=float(np.mean([len(current.clients) for current in played])),
        seconds_per_round=each,
        seconds=each * rounds * len(jobs),
    )


def duration_text(seconds: float) -> str:
    """Return a duration in words, such as `2.5 hours`."""
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{max(1, round(seconds))} s"


def _several(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
