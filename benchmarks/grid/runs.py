"""One run of the grid: simulate until the hard target is known to be held, and note from when on each target is.

Schemes that do not look at delays train the same models under every delay model: they are simulated once, and clocked
anew for each cell at the same time, until every cell knows.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedpace.records.holding import Holding, Looks
from fedpace.records.run import Round
from fedpace.runner import SharedData
from fedpace.selectors.random import Random
from fedpace.sim.clock import Clock, VirtualTime
from fedpace.sim.engines.engine import EngineOptions
from fedpace.sim.reclock import reclock
from fedpace.sim.rounds import Simulation, virtual_time
from fedpace.sim.torch_trainer import DivergedError
from grid.cells import LEVELS, Cell, Level, Task
from grid.schemes import WAIT, Mode, Scheme

HOLD = 10
"""Instants over which targets must be held, a median expected delay apart: the product's defaults."""
SLOWER = 20.0
"""Times as long as random takes, after which a scheme has failed."""
LONGER = 3
"""Times as many rounds as a task allows, for those whose rounds are so short that random would still be running."""

USUAL = 10
"""Clients of a round of random: steps of fewer answers, by schemes without rounds, count as parts of a round."""

Row = dict[str, Any]
Targets = Mapping[Level, float]


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
    """Step size, the scheme's own factor included."""
    seed: int
    targets: Targets
    mode: Mode = "charged"
    pars: Mapping[str, float] = field(default_factory=dict)
    """Seconds that random takes to the hard target, by cell; not there = it was not run, or missed it."""
    cuts: Mapping[str, float] = field(default_factory=dict)
    """Seconds, by cell, beyond which it does not matter when the hard target is held."""
    on_grid: bool = False
    """Whether to go on until it is also known from which instant of a grid on targets are held."""

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
        for current in itertools.islice(simulation.rounds(), job.task.full_rounds + 1):
            assert current.metric is not None
            curve.append(current.metric)
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
    scheme = job.scheme
    first = prepare(
        job.cells[0],
        scheme.selector(job.task.data.clients),
        job.rate,
        job.seed,
        deadline=scheme.deadline,
        charged=job.mode == "charged" and scheme.warms_up,
        server=scheme.server,
    )
    clocked = [_Clocked(job, cell, first) for cell in job.cells]
    sizes: list[int] = []
    losses: list[float] = []
    diverged = False
    try:
        for current in first.rounds():
            sizes.append(len(current.clients))
            losses += [] if current.loss is None else [current.loss]
            for each in clocked:
                if not each.status:
                    each.add(current)
            if all(each.status for each in clocked):
                break
    except DivergedError:
        diverged = True
    spent = time.process_time() - began
    return [
        {
            "cell": each.cell.name,
            "scheme": scheme.label,
            "selector": scheme.name,
            "options": dict(scheme.options),
            "factor": scheme.factor,
            "seed": job.seed,
            "lr": job.rate,
            "mode": job.mode,
            "status": each.status or ("diverged" if diverged else "limit"),
            "rounds": each.rounds,
            "clock": each.clock,
            "every": each.every,
            "clients": float(np.mean(sizes[1 : each.rounds + 1])) if each.rounds else 0.0,
            **{level: each.met(level) for level in LEVELS},
            "highest_loss": round(max(losses) / losses[0], 3) if losses and losses[0] else None,
            "cpu_seconds": round(spent / len(clocked), 2),
        }
        for each in clocked
    ]


def time_in(cell: Cell, simulation: Simulation, seed: int) -> VirtualTime:
    """Return the virtual time of a run as if it were in another cell of its task."""
    trainer = simulation.trainer
    return virtual_time(
        trainer.data,
        cell.delays,
        fleet=cell.fleet(),
        training=trainer.training,
        model_bytes=trainer.message_bytes,
        seed=seed,
    )


class _Clocked:
    """The rounds of a run in one of its cells: when they end there, and what is held from when on."""

    def __init__(self, job: Job, cell: Cell, simulation: Simulation) -> None:
        self.cell = cell
        self.status = ""
        """Empty while it goes on; `reached`, `limit`, or `cut` where it became too slow to matter."""
        self.rounds = -1
        self.clock = 0.0
        self._job = job
        self._queue: deque[Round] = deque()
        self._again: Iterator[Round] | None = None
        delays = simulation.time
        if cell is not job.cells[0]:
            delays = time_in(cell, simulation, job.seed)
            self._again = reclock(iter(self._queue.popleft, None), delays)
        self.every = float(np.median(delays.expected))
        direction = "up" if job.task.data.metric == "accuracy" else "down"
        ways: tuple[Looks, ...] = ("rounds", "grid") if job.on_grid else ("rounds",)
        self._held = {
            (level, looks): Holding(job.targets[level], direction, hold=HOLD, every=self.every, looks=looks)  # type: ignore[arg-type]
            for level in LEVELS
            for looks in ways
        }
        self._clocks: list[float] = []
        self._answers = 0
        self._stepping = not simulation.coordinator.policy.rounds

    def add(self, current: Round) -> None:
        """Take in the next round, and decide whether it is the last."""
        if self._again is not None:
            self._queue.append(current)
            current = next(self._again)
        self.rounds, self.clock = current.number, current.clock
        self._clocks.append(current.clock)
        self._answers += len(current.clients)
        for holding in self._held.values():
            holding.add(current.clock, current.metric)
        hard = self._held["hard", "rounds"]
        known = all(self._held[key].held is not None for key in self._held if key[0] == "hard")
        par = self._job.pars.get(self.cell.name, 0.0)
        limit = self._job.task.max_rounds
        # A step of a scheme without rounds may be one answer: as many make a round as random's rounds have.
        rounds = min(self.rounds, self._answers / USUAL) if self._stepping else self.rounds
        if known:
            self.status = "reached"
        elif hard.held is None and hard.earliest > self._job.cuts.get(self.cell.name, math.inf):
            self.status = "cut"
        elif (
            rounds >= LONGER * limit
            or (rounds >= limit and self.clock >= par)
            or (par and hard.earliest > SLOWER * par)
        ):
            self.status = "limit" if hard.held is None else "reached"

    def met(self, level: Level) -> Row:
        """When a target was held, and when it was met first; None = never."""
        found, gridded = self._held[level, "rounds"], self._held.get((level, "grid"))
        return {
            "target": found.target,
            "round": found.held,
            "seconds": self._at(found.held),
            "first": self._at(found.crossed),
            **({} if gridded is None else {"on_grid": self._at(gridded.held)}),
            # Of a run that was given up: the target may be held from here on, but not from any time before.
            **({"beyond": found.earliest} if self.status == "cut" and found.held is None else {}),
        }

    def _at(self, position: int | None) -> float | None:
        return None if position is None else self._clocks[position]


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


def prepare(
    cell: Cell,
    selector: Any,
    rate: float,
    seed: int,
    *,
    deadline: float = 1.0,
    charged: bool = False,
    server: Any = None,
    privacy: Any = None,
) -> Simulation:
    """Return a run before its first round; `charged`: with its warm-up on the clock, a quarter of it waited for."""
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
            fleet=cell.fleet(WAIT if charged else 1.0),
            clock=clock,
            engine=EngineOptions("inline"),
            server=server,
            privacy=privacy,
            seed=seed,
        )

    built = build(Clock(charge_warmup=charged))
    if deadline < 1:
        built = build(Clock(charge_warmup=charged, deadline=float(np.quantile(built.expected_delays, deadline))))
    return built
