"""The runs of the paper's tables: what each table needs, and how to run what is missing.

A run is stored in a folder that is named by the hash of its configuration, so it is never repeated, whatever table
asks for it, and an interrupted run continues from its last checkpoint. Schemes that use neither delays nor time are
trained once, and reclocked under the other delay model.

`tune` chooses the quick profile as a paper would, on seeds that no table reports, and keeps everything that was tried:

1. The step size of a data set is the one with which random is furthest after `rounds` rounds (mean of the last three),
   and all schemes share it.
2. Its target is what random has then, over two seeds, rounded towards easy; that of Quadratic is the paper's.
3. The options of FLANP and of ApproxOptSampling are the fastest of three for each data set and delay model.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedpace._base.errors import FedpaceError, InputError
from fedpace.config import Experiment, parse_experiment
from fedpace.core.types import configuration
from fedpace.records.run import INFO, RunRecord, read_run
from fedpace.reproduce import paper
from fedpace.reproduce.paper import (
    COLUMNS,
    PAPER_DELAYS,
    TUNED_OPTIONS,
    PaperTask,
    Profile,
    SchemeColumn,
    TunedOptions,
    merged,
    task,
    task_names,
)
from fedpace.runner import Execution, Job, SharedData, Watcher, run_job
from fedpace.runner.jobs import with_data
from fedpace.sim.engines.engine import EngineOptions
from fedpace.sim.reclock import depends_on_delays

RUNS = "runs"
HASH = 16
"""Digits of a run's name."""


@dataclass(frozen=True)
class PaperRun:
    """A scheme on a data set under a delay model and a seed."""

    task: PaperTask
    delays: str
    column: SchemeColumn
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
        table = {"clock": {"charge_warmup": False}, **self.table}  # the paper does not charge its warm-up
        return parse_experiment(table, f"{self.task.name} ({self.task.profile})")

    @cached_property
    def key(self) -> str:
        """What the run is called: the same for the same configuration, whoever asks.

        Defaults are left out, so that a version of fedpace that has learnt another option still finds its runs.
        """
        return hashlib.sha256(json.dumps(self.table, sort_keys=True).encode()).hexdigest()[:HASH]

    def job(self, store: Path, others: Sequence[PaperRun] = ()) -> Job:
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


def together(runs: Sequence[PaperRun]) -> list[list[PaperRun]]:
    """Return the runs in their order, those that differ only in their delays and look at none in one list."""
    groups: dict[Any, list[PaperRun]] = {}
    for run in runs:
        alone = run.ignores_delays and not run.delay_options
        key = (replace(run, delays=PAPER_DELAYS[0]).key, "") if alone else (run.key, run.delays)
        groups.setdefault(key, []).append(run)
    return list(groups.values())


SEEDS = (0, 1, 2)
DELAYS = {"table1": "synthetic", "table2": "nycmesh"}
ROTATIONS = (30, 45, 60)
LINKS = (1, 5, 10)
"""Megabytes a second of the fastest link."""
TARGETS = {"0.64": -0.03, "0.67": 0.0, "0.70": 0.03}
"""The paper's targets on Dirichlet CIFAR-10, as distances from that of table 1."""
COHORTS = (5, 10, 20, 30)
"""K of the sensitivity on Quadratic, for 100 clients."""
RESCALINGS = (0.3, 0.5, 0.7)
ITERATIONS = (5, 20, 100)
CASES = {
    "data": ("constant", {}),
    "latency": ("nycmesh", {"data": {"smallest_eigenvalue": 5.5, "largest_eigenvalue": 5.5}}),
    "both": ("nycmesh", {}),
}
"""The motivation figure: delays, and what changes in Quadratic; equal eigenvalues make all clients alike."""
MOTIVATION = ("delayhet-submodular", "random", "flanp", "divfl", "power-of-choice", "approx-opt-sampling")


@dataclass(frozen=True)
class Wanted:
    """A run under the name of where it is shown; one run may be shown in several places."""

    place: str
    run: PaperRun
    target: float | None = None
    """An easier target than that of the run, to be read off it."""


@dataclass(frozen=True)
class Request:
    """The tables, data sets, seeds and columns that were requested."""

    profile: Profile = "quick"
    only: tuple[str, ...] = ()
    """Data sets; empty = all."""
    seeds: tuple[int, ...] = SEEDS
    selectors: tuple[str, ...] | None = None
    """Columns of tables 1 and 2; None = all of ours."""
    tuned: TunedOptions | None = None

    def __post_init__(self) -> None:
        """Raise InputError for unknown data sets and invalid seeds."""
        for name in self.only:
            task(name, self.profile, self.tuned)
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"seeds must be different integers of at least 0, but {list(self.seeds)} came")

    @property
    def tasks(self) -> list[PaperTask]:
        """Return the data sets in the paper's order."""
        return [task(name, self.profile, self.tuned) for name in task_names() if not self.only or name in self.only]

    @property
    def columns(self) -> tuple[SchemeColumn, ...]:
        """The columns of tables 1 and 2."""
        return paper.chosen(self.selectors)

    def run(self, task: PaperTask, delays: str, column: SchemeColumn, seed: int, **changes: Any) -> PaperRun:
        """Return a run with the options that were tuned for it."""
        tuned = self.tuned or TunedOptions.packaged()
        options = tuned.options(task.name, delays, column.label) if self.profile == "quick" else {}
        if not options and column.label in paper.TUNED_OPTIONS:
            options = paper.TUNED_OPTIONS[column.label](task.k)[0]
        return PaperRun(task, delays, column, seed, {**options, **changes.pop("options", {})}, **changes)


Plan = Callable[[Request], list[Wanted]]


def cells(request: Request, *tables: str) -> list[Wanted]:
    """Return the runs of tables 1 and 2, seed by seed: if they are stopped, all schemes have the same seeds."""
    return [
        Wanted(f"{table}/{one.name}/{column.label}", request.run(one, DELAYS[table], column, seed))
        for seed in request.seeds
        for one in request.tasks
        for column in request.columns
        for table in tables or DELAYS
    ]


def table3(request: Request) -> list[Wanted]:
    """Return the paper's three sweeps of its own schemes, and its number of clients per round."""
    own = paper.chosen(paper.PAPER_SCHEMES)
    found: list[Wanted] = []
    for seed in request.seeds:
        for column in own:
            for part, runs in _sweeps(request, column, seed):
                found += [Wanted(f"table3/{part}/{column.label}", run, target) for run, target in [runs]]
        (sampling,) = paper.chosen(paper.PAPER_SCHEMES[1:])
        quadratic = _task(request, "quadratic")
        for k in COHORTS:
            if quadratic is None:
                break
            run = request.run(quadratic, "nycmesh", sampling, seed, options={"k": max(1, k * quadratic.clients // 100)})
            found.append(Wanted(f"table3/k={k}/{sampling.label}", run))
    return found


def _sweeps(request: Request, column: SchemeColumn, seed: int) -> list[tuple[str, tuple[PaperRun, float | None]]]:
    found: list[tuple[str, tuple[PaperRun, float | None]]] = []
    if rotated := _task(request, "rotated-mnist"):
        for degrees in ROTATIONS:
            change = {"data": {"max_rotation": float(degrees)}}
            found.append(
                (f"rotation={degrees}", (request.run(rotated, "synthetic", column, seed, change=change), None))
            )
    if mnist := _task(request, "dirichlet-mnist"):
        for fastest in LINKS:
            options = {} if fastest == 5 else {"link_speed": [200e3, fastest * 1e6]}  # 5 is that of table 1
            run = request.run(mnist, "synthetic", column, seed, delay_options=options)
            found.append((f"link={fastest}", (run, None)))
    if cifar := _task(request, "dirichlet-cifar10"):
        # One run to the hardest target: the easier ones are met on its way.
        hardest = replace(cifar, target=round(cifar.target + max(TARGETS.values()), 4))
        run = request.run(hardest, "synthetic", column, seed)
        found += [(f"target={name}", (run, round(cifar.target + further, 4))) for name, further in TARGETS.items()]
    return found


def motivation(request: Request) -> list[Wanted]:
    """Return figure 2: Quadratic with heterogeneous data only, with heterogeneous latency only, and with both."""
    quadratic = _task(request, "quadratic")
    if quadratic is None:
        return []
    return [
        Wanted(f"motivation/{case}/{column.label}", request.run(quadratic, delays, column, seed, change=change))
        for seed in request.seeds
        for case, (delays, change) in CASES.items()
        for column in paper.chosen(MOTIVATION)
    ]


def constants(request: Request) -> list[Wanted]:
    """Return what the paper's hidden constants decide, on Quadratic under both delay models."""
    quadratic = _task(request, "quadratic")
    if quadratic is None:
        return []
    submodular, sampling = paper.chosen(paper.PAPER_SCHEMES)
    found: list[Wanted] = []
    for seed in request.seeds:
        for delays in DELAYS.values():
            for c in RESCALINGS:
                run = request.run(quadratic, delays, submodular, seed, options={"target_heterogeneity": c})
                found.append(Wanted(f"constants/{delays}/c={c}/{submodular.label}", run))
            for steps in ITERATIONS:
                run = request.run(quadratic, delays, sampling, seed, options={"max_iter": steps})
                found.append(Wanted(f"constants/{delays}/iterations={steps}/{sampling.label}", run))
    return found


def _task(request: Request, name: str) -> PaperTask | None:
    return next((one for one in request.tasks if one.name == name), None)


PLANS: dict[str, Plan] = {
    "table1": lambda request: cells(request, "table1"),
    "table2": lambda request: cells(request, "table2"),
    "table3": table3,
    "motivation": motivation,
    "constants": constants,
}
"""What can be asked for, apart from what is measured rather than run."""


def planned(request: Request, wanted: Sequence[str]) -> list[Wanted]:
    """Return all runs of what is asked for; tables 1 and 2 together, so that one training serves both."""
    both = [name for name in DELAYS if name in wanted]
    found = cells(request, *both) if both else []
    for name in wanted:
        if name not in both:
            found += PLANS[name](request)
    return found


Note = Callable[[str], None]
INLINE = Execution(EngineOptions("inline"), keep_model=False)
"""The models of the quick profile are too small for more processes than one."""


def jobs_of(runs: Sequence[PaperRun], store: Path) -> list[Job]:
    """Return what there is to do, without what has been done."""
    found = [group[0].job(store, group[1:]) for group in together(runs)]
    return [job for job in found if not all(each.ended for each in job.all)]


def play(
    runs: Sequence[PaperRun],
    store: Path,
    watch: Watcher | None = None,
    done: Callable[[Job], None] | None = None,
    *,
    note: Note | None = None,
    execution: Execution = INLINE,
) -> int:
    """Carry out what is left of `runs`, and return how many were not possible; `note` is called for each of those.

    A data set that is not on this machine, say, must not keep the others from being run.
    """
    failed = 0
    kept: tuple[object, SharedData] | None = None
    for job in jobs_of(runs, store):
        wanted = (job.experiment.data.name, configuration(job.experiment.data))
        if kept is None or kept[0] != wanted:
            kept = wanted, SharedData(job.experiment.data)
        try:
            run_job(with_data(job, kept[1]), execution, watch)
        except FedpaceError as error:
            failed += 1
            if isinstance(error, InputError) and note is not None:
                note(f"{job.name} was not run: {error}")
            elif note is not None:
                note(f"{job.name} stopped: {error}")
        if done is not None:
            done(job)
    return failed


TUNING_SEEDS = (100, 101)
LAST = 3
"""Rounds over whose mean a run is judged."""
STEP = 0.01
"""Targets are multiples of it."""


def tune(
    names: tuple[str, ...],
    store: Path,
    tuned: TunedOptions,
    watch: Watcher | None,
    note: Note,
    keep: Callable[[TunedOptions], None],
) -> None:
    """Choose what is not chosen yet, and hand everything to `keep` after each data set."""
    for name in names:
        mine = tuned.tasks.setdefault(name, {})
        if "lr" not in mine:
            mine.update(_rate(task(name, "quick", tuned), store, watch, note))
            keep(tuned)
            note(f"{name}: lr {mine['lr']}, target {mine.get('target', 'as in the paper')}")
    for name in names:
        mine = tuned.tasks[name]
        if "options" not in mine:
            mine["options"] = _options(task(name, "quick", tuned), store, watch, note)
            keep(tuned)
            note(f"{name}: {_said(mine['options'])}")


def _rate(wanted: PaperTask, store: Path, watch: Watcher | None, note: Note) -> dict[str, Any]:
    found = {rate: _after(wanted, rate, TUNING_SEEDS[0], store, watch, note) for rate in wanted.rates}
    sign = -1 if wanted.metric == "loss" else 1
    best = max(found, key=lambda rate: sign * found[rate])
    said: dict[str, Any] = {"lr": best, "tried": {str(rate): round(value, 4) for rate, value in found.items()}}
    if wanted.metric == "accuracy":
        reached = [found[best], *(_after(wanted, best, seed, store, watch, note) for seed in TUNING_SEEDS[1:])]
        said["target"] = round(math.floor(float(np.mean(reached)) / STEP) * STEP, 2)
        said["reached"] = [round(value, 4) for value in reached]
    return said


def _after(wanted: PaperTask, rate: float, seed: int, store: Path, watch: Watcher | None, note: Note) -> float:
    """Return what random has after the expected number of rounds."""
    never = 0.0 if wanted.metric == "loss" else 1.0
    goal = replace(
        wanted, training={**wanted.training, "lr": rate}, target=never, max_rounds=wanted.rounds, profile="quick"
    )
    run = PaperRun(goal, PAPER_DELAYS[0], next(column for column in COLUMNS if column.label == "random"), seed)
    play([run], store, watch, note=note)
    record = run.record(store)
    if record is None or record.info.status == "diverged":
        return math.inf if wanted.metric == "loss" else -math.inf
    return float(np.mean([current.metric for current in record.evaluated[-LAST:]]))


def _options(wanted: PaperTask, store: Path, watch: Watcher | None, note: Note) -> dict[str, Any]:
    shorter = replace(wanted, max_rounds=2 * wanted.rounds)
    found: dict[str, Any] = {}
    for delays in PAPER_DELAYS:
        for label, settings in TUNED_OPTIONS.items():
            column = next(column for column in COLUMNS if column.label == label)
            tried = []
            for options in settings(wanted.k):
                run = PaperRun(shorter, delays, column, TUNING_SEEDS[0], options)
                play([run], store, watch, note=note)
                record = run.record(store)
                reached = None if record is None else record.reached
                tried.append({"options": options, "seconds": None if reached is None else round(reached.clock, 1)})
            best = min(tried, key=lambda each: math.inf if each["seconds"] is None else each["seconds"])
            found.setdefault(delays, {})[label] = {"chosen": best["options"], "tried": tried}
    return found


def _said(options: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{delays} {label} {found['chosen']}" for delays, each in options.items() for label, found in each.items()
    )
