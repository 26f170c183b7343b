"""`Job`, one run to carry out, and `Plan`, all runs of a comparison.

A plan is saved before the first run, so that `resume` can also start missing runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from fedpace._base.errors import InputError
from fedpace._base.files import json_bytes, keeping, read_json, write_atomically
from fedpace.config import Experiment, LabelledScheme, parse_experiment
from fedpace.core.types import configuration
from fedpace.data.federated import DataConfig, FederatedData, Metric
from fedpace.records.catalogue import PLAN
from fedpace.records.run import INFO, RunInfo, RunRecord, check_rounds, plain, read_info, read_run
from fedpace.sim.engines.engine import EngineOptions
from fedpace.sim.reclock import depends_on_delays
from fedpace.sim.rounds import Simulation


@dataclass(frozen=True)
class Job:
    """One run of a comparison."""

    experiment: Experiment
    scheme: LabelledScheme
    seed: int
    folder: Path
    clocked: tuple[Job, ...] = ()
    """The same run under other delay models, computed by `reclock` without training."""
    title: str = ""
    """Name of the delay model, if several are compared; otherwise empty."""

    @property
    def name(self) -> str:
        """Name of the job in progress bars and messages."""
        return f"{self.title + ', ' if self.title else ''}{self.scheme.label}, seed {self.seed}"

    @property
    def all(self) -> tuple[Job, ...]:
        """The job itself, and the jobs that are reclocked from it."""
        return (self, *self.clocked)

    @property
    def ended(self) -> bool:
        """Whether the run is complete on disk."""
        if not (self.folder / INFO).exists():
            return False
        info = read_info(self.folder)
        check_rounds(self.folder, info)
        return info.ended

    def simulation(self, engine: EngineOptions | None = None) -> Simulation:
        """Build the simulation; it raises if the configuration is invalid."""
        return Simulation(
            self.experiment.data,
            self.experiment.model,
            self.experiment.delays,
            self.scheme.selector,
            training=self.experiment.training,
            fleet=self.experiment.fleet,
            availability=self.experiment.availability,
            clock=self.experiment.clock,
            engine=engine,
            server=self.experiment.server_of(self.scheme),
            robust=self.experiment.robust,
            validation=self.experiment.validation,
            privacy=self.experiment.privacy,
            seed=self.seed,
        )

    def info(self, simulation: Simulation) -> RunInfo:
        """Return the content of `run.json` before the first round."""
        return RunInfo(
            label=self.scheme.label,
            selector=self.scheme.selector.name,
            options=configuration(self.scheme.selector),
            server={"name": simulation.server.name, **configuration(simulation.server)},
            robust=self.experiment.robust_table(),
            seed=self.seed,
            metric=self.experiment.data.metric,
            direction=self.experiment.direction,
            target=self.experiment.stop.target,
            hold=self.experiment.stop.hold,
            looks=self.experiment.stop.looks,
            hold_every=self.experiment.stop.spacing(simulation.expected_delays.tolist()),
            experiment=self.experiment.as_table(),
            expected_delays=tuple(simulation.expected_delays.tolist()),
            names=simulation.trainer.data.names or (),
            message_bytes=simulation.trainer.message_bytes,
            engine=simulation.engine_choice.facts(),
        )


class SharedData:
    """A data set that all schemes of a seed share: it is built once and kept until another seed is requested."""

    def __init__(self, config: DataConfig) -> None:
        self.config = config
        self._built: tuple[int, FederatedData] | None = None

    @property
    def name(self) -> str:
        """Registered name of the data set."""
        return self.config.name

    @property
    def metric(self) -> Metric:
        """Metric of the data set."""
        return self.config.metric

    def build(self, *, seed: int) -> FederatedData:
        """Return the data of `seed`."""
        if self._built is None or self._built[0] != seed:
            self._built = None  # free the old data first, so that two large data sets are never in memory
            self._built = (seed, self.config.build(seed=seed))
        return self._built[1]


def sharing(jobs: list[Job]) -> list[Job]:
    """Return the jobs with one shared data set: jobs differ in schemes, seeds and delays, never in data."""
    if not jobs:
        return []
    shared = cast("DataConfig", SharedData(jobs[0].experiment.data))
    known: dict[int, Experiment] = {}
    return [_with_data(job, shared, known) for job in jobs]


def unshared(jobs: list[Job]) -> list[Job]:
    """Return the jobs with the configuration of their data instead of the data, to send them to other processes."""
    known: dict[int, Experiment] = {}
    data = jobs[0].experiment.data
    return [_with_data(job, data.config if isinstance(data, SharedData) else data, known) for job in jobs]


def with_data(job: Job, data: SharedData) -> Job:
    """Return the job, and the jobs reclocked from it, with this data set."""
    return _with_data(job, cast("DataConfig", data), {})


def _with_data(job: Job, data: DataConfig, known: dict[int, Experiment]) -> Job:
    """Replace the data; `known` keeps the new experiments, so that jobs of one experiment still share one."""
    experiment = known.setdefault(id(job.experiment), dataclasses.replace(job.experiment, data=data))
    clocked = tuple(_with_data(each, data, known) for each in job.clocked)
    return dataclasses.replace(job, experiment=experiment, clocked=clocked)


FORMAT = 1


@dataclass(frozen=True)
class Plan:
    """One experiment, or the same experiment under several delay models."""

    experiments: Mapping[str, Experiment]
    """Subfolder -> experiment: `{"": experiment}` for one, `{"nycmesh": ..., "synthetic": ...}` for several."""

    @staticmethod
    def under(experiments: list[Experiment]) -> Plan:
        """Return the plan of one experiment, or of several that differ only in their delay models."""
        if len(experiments) == 1:
            return Plan({"": experiments[0]})
        names = [experiment.delays.name for experiment in experiments]
        if len(set(names)) < len(names):
            raise InputError(f"each delay model can be named once, but {', '.join(names)} came")
        first = experiments[0]
        if any(replace(experiment, delays=first.delays) != first for experiment in experiments):
            raise InputError("experiments that are compared in one plan may differ in their delays only")
        return Plan(dict(zip(names, experiments, strict=True)))

    @property
    def runs(self) -> int:
        """Number of runs."""
        return sum(len(each.seeds) * len(each.schemes) for each in self.experiments.values())

    def jobs(self, folder: Path) -> list[Job]:
        """Return all runs, sorted by seed first, so that an interrupted comparison has paired runs.

        A scheme that uses neither delays nor time is trained only under the first delay model.
        """
        first = next(iter(self.experiments.values()))
        found: list[Job] = []
        for seed in first.seeds:
            for scheme in first.schemes:
                each = [self._job(folder, name, scheme, seed) for name in self.experiments]
                if (
                    not first.privacy.sums
                    and depends_on_delays(scheme.selector, fleet=first.fleet, clock=first.clock, stop=first.stop)
                    is None
                ):
                    each = [replace(each[0], clocked=tuple(each[1:]))]
                found += each
        return found

    def _job(self, folder: Path, name: str, scheme: LabelledScheme, seed: int) -> Job:
        place = folder / name / scheme.label / f"seed-{seed}"
        return Job(self.experiments[name], scheme, seed, place, title=name)

    def save(self, folder: Path) -> None:
        """Write the plan into the comparison's folder."""
        with keeping(folder / PLAN):
            write_atomically(folder / PLAN, json_bytes({"format": FORMAT, "experiments": self.tables()}))

    def tables(self) -> dict[str, Any]:
        """Return the experiments as tables, as in the plan's file."""
        found: dict[str, Any] = plain({name: experiment.as_table() for name, experiment in self.experiments.items()})
        return found


@dataclass(frozen=True)
class PlanState:
    """The runs in a folder, complete or not."""

    plan: Plan | None
    """The comparison's plan; None for single runs."""
    jobs: Sequence[Job]
    """All jobs, done or not."""
    records: Mapping[Path, RunRecord]
    """Folder -> record of each complete run."""

    @staticmethod
    def of(plan: Plan, folder: Path) -> PlanState:
        """Return the state of a plan's runs in `folder`."""
        jobs = plan.jobs(folder)
        there = [each.folder for job in jobs for each in job.all if (each.folder / INFO).exists()]
        return PlanState(plan, jobs, _ended(map(read_run, there), there))

    @property
    def runs(self) -> list[Job]:
        """All runs, including those that are reclocked from others."""
        return [each for job in self.jobs for each in job.all]

    @property
    def left(self) -> list[Job]:
        """Jobs that are not complete."""
        return [job for job in self.jobs if not all(each.folder in self.records for each in job.all)]


def pending(folder: Path) -> PlanState:
    """Return the state of the run or the comparison in `folder`; each run is read once."""
    plan = None if (folder / INFO).exists() else read_plan(folder)
    return _recorded(folder) if plan is None else PlanState.of(plan, folder)


def read_plan(folder: Path) -> Plan | None:
    """Return the plan in `folder`; None if there is none."""
    tables = planned(folder)
    if tables is None:
        return None
    return Plan({name: _experiment(table, folder / PLAN) for name, table in tables.items()})


def planned(folder: Path) -> dict[str, Any] | None:
    """Return the experiments of the plan in `folder` as they stand in the file; None if there is no plan.

    Nothing is checked or loaded. Use it for reports, which must also work without the data.
    """
    path = folder / PLAN
    if not path.exists():
        return None
    raw = read_json(path)
    if not isinstance(raw, dict) or raw.get("format") != FORMAT or not isinstance(raw.get("experiments"), dict):
        raise InputError(f"{path} is not a plan of format {FORMAT}")
    return dict(raw["experiments"])


def _recorded(folder: Path) -> PlanState:
    """Return the state of the runs recorded in or below `folder`, without a plan."""
    places = sorted(path.parent for path in folder.rglob(INFO))
    if not places:
        raise InputError(f"expected a run to resume in {folder} or below it (a folder with a {INFO}): there is none")
    records = [read_run(place) for place in places]
    jobs = [_job(record, place) for record, place in zip(records, places, strict=True)]
    return PlanState(None, jobs, _ended(records, places))


def _job(record: RunRecord, place: Path) -> Job:
    """Return the job of a recorded run."""
    experiment = _experiment(record.info.experiment, place / INFO)
    scheme = next((scheme for scheme in experiment.schemes if scheme.label == record.info.label), None)
    if scheme is None:
        raise InputError(f"{place / INFO} is damaged: the scheme {record.info.label!r} is not in its experiment")
    return Job(experiment, scheme, record.info.seed, place)


def _ended(records: Iterable[RunRecord], places: Iterable[Path]) -> dict[Path, RunRecord]:
    return {place: record for place, record in zip(places, records, strict=True) if record.info.ended}


def _experiment(table: Any, path: Path) -> Experiment:
    if not isinstance(table, Mapping):
        raise InputError(f"{path} is damaged: it holds no experiment")
    return parse_experiment(table, str(path))
