"""`Job`, one run to carry out: one scheme under one seed, written into one folder."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from fedpace.config import Experiment, Scheme
from fedpace.core.types import configuration
from fedpace.data.federated import DataConfig, FederatedData, Metric
from fedpace.records.run import INFO, RunInfo, check_rounds, read_info
from fedpace.sim.engines.choice import EngineOptions
from fedpace.sim.rounds import Simulation


@dataclass(frozen=True)
class Job:
    """One run of a comparison."""

    experiment: Experiment
    scheme: Scheme
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
