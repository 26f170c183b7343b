"""`run_job` runs one job from its first round or from its last checkpoint; `clock_run` reclocks a record.

`check_folder` and `clear_folder` look after the folders of runs, and remove only files that fedpace wrote.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar

from fedpace._base.errors import InputError, StorageError
from fedpace._base.files import keeping
from fedpace._base.options import AtLeast, Options
from fedpace.config import Experiment, LabelledScheme
from fedpace.records.catalogue import PLAN
from fedpace.records.run import INFO, ROUNDS, TRACKING, Round, RunInfo, RunRecord, read_run
from fedpace.records.writer import RunWriter
from fedpace.runner.jobs import Job
from fedpace.sim.checkpoint import STATE, TENSORS, Checkpoints, Restored, is_checkpoint, save_model
from fedpace.sim.clock import VirtualTime
from fedpace.sim.engines.engine import EngineOptions
from fedpace.sim.reclock import charged_warmup_trains, depends_on_delays, has_own_availability, reclock
from fedpace.sim.rounds import Simulation, virtual_time
from fedpace.sim.stopping import StopRule, run_until
from fedpace.sim.training import DivergedError
from fedpace.tracking import Tracking, described

MODEL = "model.safetensors"

OURS = frozenset({INFO, ROUNDS, TRACKING, MODEL, PLAN})
"""Names of the files that fedpace writes into a folder of runs; `overwrite` removes only these and reports."""
ASKED = r"(?:-(?:target|hold|at|looks)-.+)?"
REPORTS = re.compile(rf"report{ASKED}\.(?:html|png)|comparison{ASKED}\.json")
"""Names of reports; those of `fedpace report --target 0.9` and the like end in what was asked for."""
IN_CHECKPOINTS = re.compile(rf"{re.escape(STATE)}|{re.escape(TENSORS)}|session\.json|arrays-[0-9a-f]{{16}}\.npz")
"""Names of the files that fedpace writes into the folder of a checkpoint."""
UNFINISHED = re.compile(r"\.(.+)\.[0-9a-f]{16}")
"""Temporary name of a file; such a file remains if the process is killed while writing."""


def check_folder(folder: Path, *, overwrite: bool, how: str = "--overwrite") -> None:
    """Raise if new runs cannot be written into a folder; change nothing."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: give a folder to write into")
    if _our_files(folder) and not overwrite:
        raise InputError(f"{folder} holds runs already: give another folder, or overwrite them ({how})")


def clear_folder(folder: Path) -> None:
    """Remove the runs in `folder`; raise, and remove nothing, if it contains other files."""
    try:
        for path in _our_files(folder):
            path.unlink()
        for path in sorted(folder.rglob("*"), reverse=True):  # inner folders first
            path.rmdir()
    except OSError as cause:
        raise StorageError(
            f"the runs in {folder} cannot be removed: {cause}. Give another folder, or make it writable"
        ) from cause


def take_back_plan(folder: Path, created: list[Path]) -> None:
    """Remove the plan and the `created` folders (inner first) if no run was started."""
    if list(folder.rglob("*")) == [folder / PLAN]:
        (folder / PLAN).unlink()
        for each in created:
            each.rmdir()


def sweep(folder: Path) -> None:
    """Remove temporary files that a killed process left in a run's folder."""
    for path in folder.iterdir():
        if UNFINISHED.fullmatch(path.name) and path.is_file() and _is_ours(path):
            path.unlink(missing_ok=True)


def _our_files(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if not path.is_dir()]
    foreign = [path for path in files if path.is_symlink() or not _is_ours(path)]
    if foreign:
        raise InputError(f"{folder} holds files that are not fedpace's, such as {foreign[0]}: give another folder")
    return files


def _is_ours(path: Path) -> bool:
    unfinished = UNFINISHED.fullmatch(path.name)
    name = unfinished.group(1) if unfinished else path.name
    if name in OURS or REPORTS.fullmatch(name) is not None:
        return True
    return is_checkpoint(path.parent) and IN_CHECKPOINTS.fullmatch(name) is not None


class TooShortError(InputError):
    """A record cannot be reclocked, because the run would be longer under the other delays."""


Watcher = Callable[[Job, Round], None]
"""Called with the job and the round after every round, for example by a progress bar."""

SMALL_MODEL_BYTES = 16 * 2**20
"""Largest final model in bytes that is saved by default."""


@dataclass(frozen=True)
class Execution(Options):
    """How runs are executed; it does not change the results.

    Args:
        engine: the engine that trains the clients.
        checkpoint_every: real seconds between checkpoints, see `Checkpoints`.
        keep_model: whether to save the final model as `model.safetensors`; None = only if it is small.
    """

    engine: EngineOptions = field(default_factory=EngineOptions)
    checkpoint_every: Annotated[float, AtLeast(0)] | None = None
    keep_model: bool | None = None

    options_of: ClassVar[str | None] = ""

    def keeps(self, simulation: Simulation) -> bool:
        """Return whether to save the final model of this run."""
        if self.keep_model is not None:
            return self.keep_model
        return int(simulation.parameters.nbytes) <= SMALL_MODEL_BYTES


def run_one(
    experiment: Experiment,
    scheme: LabelledScheme,
    seed: int,
    folder: Path,
    watch: Watcher | None = None,
    *,
    execution: Execution | None = None,
    overwrite: bool = False,
) -> RunRecord:
    """Run one scheme under one seed into `folder`, which must not contain a run; `overwrite` as in `run_all`."""
    job = Job(experiment, scheme, seed, folder)
    execution = execution or Execution()
    simulation = job.simulation(execution.engine)
    if overwrite:
        clear_folder(folder)
    with RunWriter(folder, job.info(simulation)) as writer:
        _play(job, simulation, writer, execution, watch, ())
    Checkpoints(folder).clear()
    return read_run(folder)


def run_job(job: Job, execution: Execution | None = None, watch: Watcher | None = None) -> list[RunRecord]:
    """Run a job, or the rest of it if it was interrupted; return the record of each of `job.all`."""
    execution = execution or Execution()
    trained = _finished(job, execution, watch)
    if job.clocked and not all(has_own_availability(time_of(each.experiment, each.seed, 0)) for each in job.all):
        # The delay model is a trace with its own availability: the rounds would differ under other delays.
        return [trained, *(_finished(other, execution, watch) for other in job.clocked)]
    return [
        trained,
        *(_clocked(other, job, trained, watch) or _finished(other, execution, watch) for other in job.clocked),
    ]


def clock_run(record: RunRecord, experiment: Experiment) -> RunRecord:
    """Return a recorded run with the times that it would have under the delays and the clock of `experiment`.

    Nothing is trained. The rest of `experiment` must be as in the record. Under other delays the target may be held in
    an earlier round, and then the record is cut there. If it would be held only after the last recorded round, this
    raises `TooShortError`.
    """
    info = record.info
    scheme = next((scheme for scheme in experiment.schemes if scheme.label == info.label), None)
    if scheme is None:
        raise InputError(f"expected {info.label!r} among the schemes of the experiment, but it is not there")
    reason = depends_on_delays(scheme.selector, fleet=experiment.fleet, clock=experiment.clock, stop=experiment.stop)
    if experiment.privacy.sums:
        reason = "secure aggregation has a cost on the clock"
    if reason is not None:
        raise InputError(f"{info.label!r} cannot be clocked anew, since {reason}: run it")
    if charged_warmup_trains(scheme.selector, experiment.fleet) and _charged(info) != experiment.clock.charge_warmup:
        raise InputError(
            f"{info.label!r} cannot be clocked anew, since a warm-up that is charged is its first round: run it"
        )
    if info.message_bytes is None:
        raise InputError(f"the record of {info.label!r} does not say how large its messages were: run it anew")
    time = time_of(experiment, info.seed, info.message_bytes)
    expected = tuple(time.expected.tolist())
    stop_rule = StopRule(experiment.stop, experiment.direction, expected)
    rounds = tuple(run_until(reclock(record.rounds, time), stop_rule))
    if info.ended and info.status != "diverged" and not stop_rule.over:
        raise TooShortError(
            f"{info.label!r} ended after {len(rounds) - 1} rounds, before it is known whether its target is held under "
            f"{experiment.delays.name} delays: run it"
        )
    trained_under = info.clocked_from or str(info.experiment.get("delays", {}).get("name"))
    clocked = replace(
        info,
        experiment=experiment.as_table(),
        expected_delays=expected,
        hold_every=experiment.stop.spacing(expected),
        status=("reached" if stop_rule.held else "finished") if stop_rule.over else info.status,
        message="" if stop_rule.over else info.message,
        clocked_from=trained_under,
        sittings=1,
        wall_seconds=None,
    )
    return RunRecord(clocked, rounds)


def _charged(info: RunInfo) -> bool:
    clock = info.experiment.get("clock", {})
    return bool(clock.get("charge_warmup", False))


def time_of(experiment: Experiment, seed: int, model_bytes: int) -> VirtualTime:
    """Return the virtual clock of a run before its first round."""
    return virtual_time(
        experiment.data.build(seed=seed),
        experiment.delays,
        fleet=experiment.fleet,
        availability=experiment.availability,
        clock=experiment.clock,
        training=experiment.training,
        model_bytes=model_bytes,
        seed=seed,
    )


def _finished(job: Job, execution: Execution, watch: Watcher | None) -> RunRecord:
    if not (job.folder / INFO).exists():
        return run_one(job.experiment, job.scheme, job.seed, job.folder, watch, execution=execution)
    record = read_run(job.folder)
    if record.info.ended:
        Checkpoints(job.folder).clear()
        return record
    sweep(job.folder)
    simulation = job.simulation(execution.engine)
    restored = Checkpoints(job.folder).restore(simulation)
    restored = restored or Restored(-1, 0.0)  # without a checkpoint, start again from round 0
    rounds = restored.round + 1
    with RunWriter.resume(
        job.folder, rounds=rounds, wall_seconds=restored.wall_seconds, digests=restored.digests
    ) as writer:
        _play(job, simulation, writer, execution, watch, record.rounds[:rounds])
    Checkpoints(job.folder).clear()
    return read_run(job.folder)


def _play(
    job: Job,
    simulation: Simulation,
    writer: RunWriter,
    execution: Execution,
    watch: Watcher | None,
    before: Sequence[Round],
) -> None:
    """Run and record the rounds that follow `before`, until the run ends."""
    stop = job.experiment.stop
    stop_rule = StopRule(stop, job.experiment.direction, simulation.expected_delays.tolist())
    for current in before:
        stop_rule.add(current)
    checkpoints = Checkpoints(job.folder, every=execution.checkpoint_every)
    tracking = Tracking(job.experiment.track, described(writer.info), job.folder)
    try:
        with closing(simulation.rounds(stop.evaluates)) as rounds:
            for current in run_until(rounds, stop_rule):
                if writer.add(current):
                    tracking.add(current, writer.info.metric)
                if watch is not None:
                    watch(job, current)
                # A checkpoint of the last round is useless.
                if current.number > 0 and not stop_rule.over:
                    checkpoints.save_if_due(
                        simulation, wall_seconds=writer.wall_seconds, digests=lambda: writer.digests
                    )
        if execution.keeps(simulation):
            save_model(simulation, job.folder / MODEL)
        spent = "The privacy budgets are spent." if simulation.exhausted and not stop_rule.over else ""
        writer.finish("reached" if stop_rule.held else "finished", spent)
    except DivergedError as error:
        # Divergence is a result of the scheme, not an error: the other runs continue.
        writer.finish("diverged", str(error))
    finally:
        tracking.close(writer.info.status if writer.info.ended else "interrupted")


def _clocked(job: Job, source: Job, trained: RunRecord, watch: Watcher | None) -> RunRecord | None:
    """Reclock a run that was trained under other delays; return None if it must be trained instead."""
    if (job.folder / INFO).exists():
        begun = read_run(job.folder)
        if begun.info.ended:
            return begun
        if begun.info.clocked_from is None:
            return None
        clear_folder(job.folder)  # reclocking is fast, so start again
    try:
        record = clock_run(trained, job.experiment)
    except TooShortError:
        return None
    with (
        RunWriter(job.folder, replace(record.info, status="running", message="")) as writer,
        Tracking(job.experiment.track, described(writer.info), job.folder) as tracking,
    ):
        for current in record.rounds:
            writer.add(current)
            tracking.add(current, writer.info.metric)
            if watch is not None:
                watch(job, current)
        # The saved model belongs to the last round of the trained run.
        if (source.folder / MODEL).exists() and len(record.rounds) == len(trained.rounds):
            with keeping(job.folder / MODEL):
                shutil.copyfile(source.folder / MODEL, job.folder / MODEL)
        writer.finish(record.info.status, record.info.message)
    return read_run(job.folder)
