"""One run of the grid: simulate until the hard target, and note when each target was met.

Schemes that do not look at delays train the same models under every delay model: they are simulated once, and the
clock is read anew for each cell. A warm-up only moves the clock by a constant, so every row has the time without it and
the seconds that it would add.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedpace.runner import SharedData
from fedpace.selectors.random import Random
from fedpace.sim.clock import Clock
from fedpace.sim.round import Round
from fedpace.sim.rounds import Simulation
from fedpace.sim.trainer import DivergedError
from grid.cells import LEVELS, Cell, Level, Task
from grid.schemes import Scheme

Row = dict[str, Any]
Targets = dict[Level, float]


@dataclass(frozen=True)
class FullJob:
    """Full participation: what the targets are relative to."""

    task: Task
    rate: float
    seed: int


@dataclass(frozen=True)
class Job:
    """A scheme under one seed in cells that share a trajectory: one cell, unless the scheme is blind to delays."""

    scheme: Scheme
    cells: tuple[Cell, ...]
    rate: float
    seed: int
    targets: Targets

    @property
    def task(self) -> Task:
        """What is learnt."""
        return self.cells[0].task


_kept: dict[str, SharedData] = {}
"""The data that this process used last: drawn once for all schemes of a seed."""


def one_thread() -> None:
    """Prepare a worker: processes fill the cores, not threads."""
    torch.set_num_threads(1)


def full_participation(job: FullJob) -> Row:
    """Return the metric of full participation, round by round, and the targets that follow from it."""
    began = time.process_time()
    selector = Random(k=job.task.data.clients)
    simulation = _simulation(Cell(job.task, _NO_DELAYS, rare=False), selector, job.rate, job.seed)
    curve: list[float] = []
    status = "ok"
    try:
        curve.extend(r.metric for r in itertools.islice(simulation.rounds(), job.task.full_rounds + 1))
    except DivergedError:
        status = "diverged"
    targets = job.task.targets(curve) if status == "ok" else None
    return {
        "task": job.task.name,
        "lr": job.rate,
        "seed": job.seed,
        "status": status,
        "targets": targets,
        "plateau": float(np.mean(curve[-10:])) if curve else None,
        "curve": [round(metric, 5) for metric in curve],
        "cpu_seconds": round(time.process_time() - began, 2),
    }


def run(job: Job) -> list[Row]:
    """Return one row a cell."""
    began = time.process_time()
    first = _simulation(job.cells[0], job.scheme.selector, job.rate, job.seed, job.scheme.deadline)
    warmed_up = first.session.warmup_due(available=range(job.task.data.clients))
    rounds: list[Round] = []
    status = "limit"
    try:
        for current in itertools.islice(first.rounds(), job.task.max_rounds + 1):
            rounds.append(current)
            if job.task.better(current.metric, job.targets["hard"]):
                status = "reached"
                break
    except DivergedError:
        status = "diverged"
    spent = time.process_time() - began
    rows = []
    for cell in job.cells:
        delays = first.delays
        if cell is not job.cells[0]:
            delays = _simulation(cell, job.scheme.selector, job.rate, job.seed).delays
        clock = [r.clock for r in rounds] if len(job.cells) == 1 else list(_clock(delays, rounds))
        rows.append(
            {
                "cell": cell.name,
                "scheme": job.scheme.label,
                "selector": job.scheme.name,
                "options": job.scheme.options,
                "seed": job.seed,
                "lr": job.rate,
                "status": status,
                "rounds": len(rounds) - 1,
                "clock": clock[-1] if clock else 0.0,
                "warmup": float(delays.draw(0).max()) if warmed_up else 0.0,
                "clients": float(np.mean([len(r.clients) for r in rounds[1:]])) if rounds[1:] else 0.0,
                **{level: _met(job.task, job.targets[level], rounds, clock) for level in LEVELS},
                "cpu_seconds": round(spent / len(job.cells), 2),
            }
        )
    return rows


def _met(task: Task, target: float, rounds: list[Round], clock: list[float]) -> Row:
    """When the target was met first; None = never."""
    for current, seconds in zip(rounds, clock, strict=True):
        if task.better(current.metric, target):
            return {"target": target, "round": current.number, "seconds": seconds}
    return {"target": target, "round": None, "seconds": None}


def _clock(delays: Any, rounds: list[Round]) -> Iterator[float]:
    """Virtual seconds at the end of each round, had it been held under these delays."""
    now = 0.0
    for current in rounds:
        if current.clients:
            now += float(delays.draw(current.number)[list(current.clients)].max())
        yield now


class _NoDelays:
    """Full participation is judged by rounds: its delays are nobody's business."""

    name = "none"

    def build(self, clients: int, *, model_bytes: int, seed: int) -> _NoDelays:
        """Return the model."""
        self.clients = clients
        return self

    def expected(self) -> Any:
        """A second each."""
        return np.ones(self.clients)

    def draw(self, step: int) -> Any:
        """A second each."""
        return np.ones(self.clients)


_NO_DELAYS = _NoDelays()


def _simulation(cell: Cell, selector: Any, rate: float, seed: int, deadline: float = 1.0) -> Simulation:
    task = cell.task
    if task.name not in _kept:
        _kept.clear()
        _kept[task.name] = SharedData(task.data)

    def build(clock: Clock) -> Simulation:
        return Simulation(
            _kept[task.name],  # type: ignore[arg-type]
            task.model,
            cell.delays,
            selector,
            training=task.at(rate),
            fleet=cell.fleet,
            clock=clock,
            seed=seed,
        )

    simulation = build(Clock())
    if deadline < 1:
        simulation = build(Clock(deadline=float(np.quantile(simulation.expected_delays, deadline))))
    return simulation
