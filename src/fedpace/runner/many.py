"""`run_plan` and `resume` run all jobs of a comparison, one after the other or in parallel."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedpace._base.errors import FedpaceError, InputError
from fedpace.config import Experiment
from fedpace.records.run import RunRecord, read_run
from fedpace.runner.folders import clear_folder, sweep, take_back_plan
from fedpace.runner.jobs import Job, Plan, PlanState, pending, sharing, unshared
from fedpace.runner.pool import run_together
from fedpace.runner.running import Execution, Watcher, run_job, time_of
from fedpace.sim.clock import VirtualTime
from fedpace.sim.engines.choice import EngineOptions, cores
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
