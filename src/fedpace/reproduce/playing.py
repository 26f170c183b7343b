"""Runs the runs one after the other: it skips complete runs and resumes interrupted ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedpace._base.errors import FedpaceError, InputError
from fedpace.core.types import configuration
from fedpace.reproduce.runs import Run, together
from fedpace.runner import Execution, Job, SharedData, Watcher, run_job
from fedpace.runner.jobs import with_data
from fedpace.sim.engines.choice import EngineOptions

Note = Callable[[str], None]
INLINE = Execution(EngineOptions("inline"), keep_model=False)
"""The models of the quick profile are too small for more processes than one."""


def jobs_of(runs: Sequence[Run], store: Path) -> list[Job]:
    """Return what there is to do, without what has been done."""
    found = [group[0].job(store, group[1:]) for group in together(runs)]
    return [job for job in found if not all(each.ended for each in job.all)]


def play(
    runs: Sequence[Run],
    store: Path,
    watch: Watcher | None = None,
    done: Callable[[Job], None] | None = None,
    *,
    note: Note | None = None,
    execution: Execution = INLINE,
) -> int:
    """Do all that is left of `runs`; return how many were not possible, each of which is told to `note`.

    A data set that is not on this machine, say, must not keep the others from being run.
    """
    failed = 0
    kept: tuple[object, SharedData] | None = None
    for job in jobs_of(runs, store):
        wanted = (job.experiment.data.name, configuration(job.experiment.data))
        if kept is None or kept[0] != wanted:
            kept = wanted, SharedData(job.experiment.data)
        try:
            run_job(with_data(job, kept[1]), execution, watch)
        except FedpaceError as error:
            failed += 1
            if isinstance(error, InputError) and note is not None:
                note(f"{job.name} was not run: {error}")
            elif note is not None:
                note(f"{job.name} stopped: {error}")
        if done is not None:
            done(job)
    return failed
