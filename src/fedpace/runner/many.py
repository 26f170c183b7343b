"""Runs all jobs of a comparison, one after the other or side by side."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedpace._base.errors import FedpaceError, InputError
from fedpace.config import Experiment
from fedpace.records.run import RunRecord, read_run
from fedpace.runner.folders import clear_folder, sweep, take_back_plan
from fedpace.runner.jobs import Job, sharing, unshared
from fedpace.runner.plan import Begun, Plan, pending
from fedpace.runner.pool import run_together
from fedpace.runner.running import Execution, Watcher, run_job, time_of
from fedpace.sim.clock import VirtualTime
from fedpace.sim.engines.choice import EngineOptions, cores
from fedpace.sim.setup import check_scheme, settings
from fedpace.sim.trainers import AnyTrainer, trainer_for

WORTHWHILE_SECONDS = 15.0
"""Seconds of work left from which worker processes, which take some to start, are worth their start."""

Done = Callable[[Job], None]
"""Called when a job, and all that is clocked from it, is done."""


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
    """Run everything that is planned, into `folder`, and return the records.

    Args:
        plan: what to run.
        folder: where; it holds no runs yet.
        watch: called after every round.
        done: called after every job.
        execution: how; nothing of it changes what comes out.
        jobs: runs at a time, in processes of their own; 0 = one per core where a single run cannot use the cores.
        overwrite: remove the runs that the folder holds, once all schemes have proved to be well configured.
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
    begun: Begun | None = None,
) -> list[RunRecord]:
    """Finish what was begun in `folder`, a run's or a comparison's, and return all its records.

    Each unfinished run goes on from its last checkpoint; those not yet begun are begun. Arguments as for `run_plan`;
    `begun` is what `pending(folder)` gave, where it was called already.
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
    """Find what is wrong with any scheme before the first runs; return how many runs at a time make sense.

    One model and one data set are built for all of them: those of the first seed, whose data the first run then uses.
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
    grounds: list[tuple[Experiment, AnyTrainer, VirtualTime]] = []
    engines = set()
    for job in first.values():
        trainer, clocked = _grounds(job.experiment, jobs[0].seed, grounds)
        settings(job.scheme.selector, trainer, clocked, job.experiment.fleet, seed=job.seed)
        engines.add(check_scheme(job.scheme.selector, trainer, execution.engine).name)
    useful = cores() if engines == {"inline"} else 1
    return min(at_a_time or useful, len(jobs))


def _grounds(
    asked: Experiment, seed: int, known: list[tuple[Experiment, AnyTrainer, VirtualTime]]
) -> tuple[AnyTrainer, VirtualTime]:
    """Return what schemes of a seed train with, and the time that they train in; each is built once."""
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
    """Carry out `jobs`; with `spread_later` the first ones here, and the others side by side once that is worth it."""
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
