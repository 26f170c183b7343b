"""The step size of each cell: the one with which random meets the hard target soonest, on seeds that no table reports.

Two things are chosen for a task. The reference step size is that with which full participation ends highest: it sets
the targets, which then are the same whatever a scheme is run with. The step size of a cell has the smallest geometric
mean time of random to the hard target; one that fails more often is worse, however fast it is otherwise.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grid.cells import Cell, Task
from grid.runs import FullJob, Job, full_participation, run
from grid.schemes import Scheme
from grid.store import Rows, spread

FILE = Path(__file__).parent / "tuned.json"
SEEDS = (100, 101, 102)


class Tuned:
    """What was chosen so far."""

    def __init__(self, path: Path = FILE) -> None:
        self.path = path
        self.tasks: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def reference(self, task: Task) -> float:
        """Step size of full participation."""
        return float(self.tasks[task.name]["reference"]) if self._has(task) else task.training.lr

    def rate(self, cell: Cell) -> float:
        """Step size of a cell."""
        return float(self.tasks[cell.task.name]["cells"][cell.name]) if self._has(cell.task) else cell.task.training.lr

    def _has(self, task: Task) -> bool:
        return task.name in self.tasks

    def warn(self, tasks: Iterable[Task]) -> None:
        """Say which tasks have no tuned step size."""
        for task in tasks:
            if not self._has(task):
                print(f"{task.name} is not tuned: its lr is {task.training.lr} (tune with --tune)", file=sys.stderr)

    def keep(self, task: Task, found: dict[str, Any]) -> None:
        """Take over what was found for a task."""
        self.tasks[task.name] = found
        self.path.write_text(json.dumps(self.tasks, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def full_key(row: dict[str, Any]) -> tuple[Any, ...]:
    """What tells two runs of full participation apart."""
    return row["task"], row["lr"], row["seed"]


def tune(task: Task, cells: Sequence[Cell], folder: Path, processes: int, seeds: Sequence[int] = SEEDS) -> None:
    """Choose the step sizes of a task and its cells, and write them down."""
    targets = Rows(folder / "targets.jsonl", full_key)
    wanted = [FullJob(task, rate, seed) for rate in task.rates for seed in seeds]
    wanted = [job for job in wanted if (task.name, job.rate, job.seed) not in targets]
    for row in spread(full_participation, wanted, processes):
        targets.add(row)

    def plateau(rate: float) -> float:
        rows = [targets.rows[task.name, rate, seed] for seed in seeds]
        worst = -np.inf if task.data.metric == "accuracy" else np.inf
        return float(np.mean([row["plateau"] if row["status"] == "ok" else worst for row in rows]))

    plateaus = {rate: plateau(rate) for rate in task.rates}
    reference = (max if task.data.metric == "accuracy" else min)(task.rates, key=plateaus.__getitem__)

    tried = Rows(folder / "tuning.jsonl", lambda row: (row["cell"], row["lr"], row["seed"]))
    jobs = [
        Job(Scheme("random", "random"), tuple(cells), rate, seed, targets.rows[task.name, reference, seed]["targets"])
        for rate in task.rates
        for seed in seeds
        if any((cell.name, rate, seed) not in tried for cell in cells)
    ]
    for rows in spread(run, jobs, processes):
        for row in rows:
            tried.add(row)

    def cost(cell: Cell, rate: float) -> tuple[int, float]:
        times = [tried.rows[cell.name, rate, seed]["hard"]["seconds"] for seed in seeds]
        met = [np.log(seconds) for seconds in times if seconds is not None]
        return len(times) - len(met), float(np.exp(np.mean(met))) if met else float("inf")

    costs = {cell.name: {rate: cost(cell, rate) for rate in task.rates} for cell in cells}
    Tuned().keep(
        task,
        {
            "reference": reference,
            "plateaus": {str(rate): _plain(value) for rate, value in plateaus.items()},
            "cells": {name: min(found, key=found.__getitem__) for name, found in costs.items()},
            "random_to_hard": {
                name: {str(rate): {"failed": failed, "seconds": _plain(mean)} for rate, (failed, mean) in found.items()}
                for name, found in costs.items()
            },
        },
    )


def _plain(value: float) -> float | None:
    return round(value, 4) if np.isfinite(value) else None
