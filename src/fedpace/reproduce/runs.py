"""One run of the tables, and the folder where runs are kept by the hash of all that decides their outcome.

A run that is there is never repeated, whatever table asks for it, and one that was stopped goes on from its last
checkpoint. Schemes that look neither at delays nor at time are trained once, and clocked under the other delay model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedpace.config import Experiment, parse_experiment
from fedpace.records.run import INFO, RunRecord, read_run
from fedpace.reproduce.columns import Column
from fedpace.reproduce.tasks import DELAYS, Task, merged
from fedpace.runner import Job
from fedpace.sim.reclock import depends_on_delays

RUNS = "runs"
HASH = 16
"""Digits of a run's name."""


@dataclass(frozen=True)
class Run:
    """A scheme on a data set under a delay model and a seed."""

    task: Task
    delays: str
    column: Column
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the scheme, that were tuned."""
    delay_options: Mapping[str, Any] = field(default_factory=dict)
    change: Mapping[str, Any] = field(default_factory=dict)
    """What else differs from the data set's table, such as the largest rotation."""

    @cached_property
    def table(self) -> dict[str, Any]:
        """The whole configuration, as TOML would hold it."""
        task = self.task
        table: dict[str, Any] = {
            "name": f"{task.name} {task.profile}",
            "seeds": [self.seed],
            "data": dict(task.data),
            "model": dict(task.model),
            "delays": task.delays(self.delays, **self.delay_options),
            "training": dict(task.training),
            "stop": {"target": task.target, "hold": 1, "max_rounds": self.column.patience * task.max_rounds},
            "selectors": [self.column.table(task, self.options)],
            **self.column.sections,
        }
        return merged(table, self.change)

    @cached_property
    def experiment(self) -> Experiment:
        """The same as the runner takes it."""
        return parse_experiment(self.table, f"{self.task.name} ({self.task.profile})")

    @cached_property
    def key(self) -> str:
        """What the run is called: the same for the same configuration, whoever asks.

        Defaults are left out, so that a version of fedpace that has learnt another option still finds its runs.
        """
        return hashlib.sha256(json.dumps(self.table, sort_keys=True).encode()).hexdigest()[:HASH]

    def job(self, store: Path, others: Sequence[Run] = ()) -> Job:
        """Return the run as the runner takes it; `others` are the same under other delays, to be clocked from it."""
        where = f"{self.task.name}, {self.delays}"
        return Job(
            self.experiment,
            self.experiment.schemes[0],
            self.seed,
            store / RUNS / self.key,
            tuple(other.job(store) for other in others),
            title=where,
        )

    @property
    def ignores_delays(self) -> bool:
        """Whether it looks neither at delays nor at time."""
        found, scheme = self.experiment, self.experiment.schemes[0]
        reason = depends_on_delays(scheme.selector, fleet=found.fleet, clock=found.clock, stop=found.stop)
        return reason is None

    def record(self, store: Path) -> RunRecord | None:
        """Return what is on disk of it; None = nothing."""
        folder = store / RUNS / self.key
        return read_run(folder) if (folder / INFO).exists() else None


def together(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs in their order, those that differ only in their delays and look at none in one list."""
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        alone = run.ignores_delays and not run.delay_options
        key = (replace(run, delays=DELAYS[0]).key, "") if alone else (run.key, run.delays)
        groups.setdefault(key, []).append(run)
    return list(groups.values())
