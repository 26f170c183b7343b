"""One run of the grid: simulate until the hard target, and note when each target was met.

Schemes that do not look at delays train the same models under every delay model: they are simulated once, and clocked
anew for each cell. A warm-up only moves the clock by a constant, so every row has the time without it and
the seconds that it would add.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedpace.core.types import DelayModel
from fedpace.runner import SharedData
from fedpace.selectors.random import Random
from fedpace.sim.clock import Clock, VirtualTime
from fedpace.sim.engines.choice import EngineOptions
from fedpace.sim.reclock import reclock
from fedpace.sim.round import Round
from fedpace.sim.rounds import Simulation, virtual_time
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
    simulation = prepare(Cell(job.task, _NO_DELAYS, rare=False), selector, job.rate, job.seed)
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
    first = prepare(job.cells[0], job.scheme.selector, job.rate, job.seed, job.scheme)
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
        time_here, held = first.time, rounds
        if cell is not job.cells[0]:
            time_here = _time(first, cell, job.seed)
            held = list(reclock(rounds, time_here))
        clock = [r.clock for r in held]
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
                "warmup": 0.0 if job.scheme.wait < 1 else sum(_measuring(time_here.delays, r) for r in rounds),
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


def _measuring(delays: DelayModel, current: Round) -> float:
    """What the warm-up before a round would have cost, had it been charged."""
    return float(delays.draw(current.number - 1)[list(current.warmed)].max()) if current.warmed else 0.0


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


def _time(simulation: Simulation, cell: Cell, seed: int) -> VirtualTime:
    """The time of another cell in which the same rounds are held."""
    trainer = simulation.trainer
    return virtual_time(trainer.data, cell.delays, fleet=cell.fleet, model_bytes=trainer.message_bytes, seed=seed)


def prepare(cell: Cell, selector: Any, rate: float, seed: int, scheme: Scheme | None = None) -> Simulation:
    """Return the run of a scheme in a cell, before its first round."""
    task = cell.task
    deadline, wait = (1.0, 1.0) if scheme is None else (scheme.deadline, scheme.wait)
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
            fleet=replace(cell.fleet, warmup_wait=wait),
            clock=clock,
            engine=EngineOptions("inline"),
            seed=seed,
        )

    simulation = build(Clock(charge_warmup=wait < 1))
    if deadline < 1:
        simulation = build(Clock(deadline=float(np.quantile(simulation.expected_delays, deadline))))
    return simulation
