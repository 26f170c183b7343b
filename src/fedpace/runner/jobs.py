"""What there is to do: one scheme under one seed, into one folder."""

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
    """One run."""

    experiment: Experiment
    scheme: Scheme
    seed: int
    folder: Path
    clocked: tuple[Job, ...] = ()
    """The same run under other delay models, which needs no training of its own."""
    title: str = ""
    """What to call it where several delay models are compared; empty: by scheme and seed."""

    @property
    def name(self) -> str:
        """What it is called on a screen."""
        return f"{self.title + ', ' if self.title else ''}{self.scheme.label}, seed {self.seed}"

    @property
    def all(self) -> tuple[Job, ...]:
        """The job itself, and those that are clocked from it."""
        return (self, *self.clocked)

    @property
    def ended(self) -> bool:
        """Whether this run is on disk from its first round to its last."""
        if not (self.folder / INFO).exists():
            return False
        info = read_info(self.folder)
        check_rounds(self.folder, info)
        return info.ended

    def simulation(self, engine: EngineOptions | None = None) -> Simulation:
        """Build the run; a mistake in its configuration shows here."""
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
        """Return what `run.json` says before the first round."""
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
    """A data set that all schemes of a seed share: drawn once, kept until another seed is asked for."""

    def __init__(self, config: DataConfig) -> None:
        self.config = config
        self._built: tuple[int, FederatedData] | None = None

    @property
    def name(self) -> str:
        """As registered."""
        return self.config.name

    @property
    def metric(self) -> Metric:
        """What the data set is judged by."""
        return self.config.metric

    def build(self, *, seed: int) -> FederatedData:
        """Return the data of `seed`."""
        if self._built is None or self._built[0] != seed:
            self._built = None  # two large data sets need not be in memory at once
            self._built = (seed, self.config.build(seed=seed))
        return self._built[1]


def sharing(jobs: list[Job]) -> list[Job]:
    """Return the jobs with one data set in common: they differ in schemes, seeds and delays, never in data."""
    if not jobs:
        return []
    shared = cast("DataConfig", SharedData(jobs[0].experiment.data))
    known: dict[int, Experiment] = {}
    return [_with_data(job, shared, known) for job in jobs]


def unshared(jobs: list[Job]) -> list[Job]:
    """Return the jobs with the description of their data alone, as they are sent to other processes."""
    known: dict[int, Experiment] = {}
    data = jobs[0].experiment.data
    return [_with_data(job, data.config if isinstance(data, SharedData) else data, known) for job in jobs]


def with_data(job: Job, data: SharedData) -> Job:
    """Return the job, and what is clocked from it, on that data set."""
    return _with_data(job, cast("DataConfig", data), {})


def _with_data(job: Job, data: DataConfig, known: dict[int, Experiment]) -> Job:
    """Change the data; jobs of one experiment still have one in common, which `known` holds by what it was."""
    experiment = known.setdefault(id(job.experiment), dataclasses.replace(job.experiment, data=data))
    clocked = tuple(_with_data(each, data, known) for each in job.clocked)
    return dataclasses.replace(job, experiment=experiment, clocked=clocked)
