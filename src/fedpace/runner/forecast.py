"""`estimate_duration` estimates the duration of a comparison: it runs and times a few rounds of each scheme."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedpace.records.round import Round
from fedpace.runner.jobs import Job, Plan, sharing
from fedpace.runner.many import check_jobs
from fedpace.runner.running import Execution, Watcher

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
