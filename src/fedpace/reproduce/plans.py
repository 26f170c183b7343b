"""The runs of each table and figure of the paper, by the place where they are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedpace._base.errors import InputError
from fedpace.reproduce import columns, paper
from fedpace.reproduce.columns import Column
from fedpace.reproduce.outcomes import Wanted
from fedpace.reproduce.runs import Run
from fedpace.reproduce.tasks import Profile, Task, task, task_names
from fedpace.reproduce.tuned import Tuned

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
class Request:
    """What somebody wants to see."""

    profile: Profile = "quick"
    only: tuple[str, ...] = ()
    """Data sets; empty = all."""
    seeds: tuple[int, ...] = SEEDS
    selectors: tuple[str, ...] | None = None
    """Columns of tables 1 and 2; None = all of ours."""
    tuned: Tuned | None = None

    def __post_init__(self) -> None:
        """Refuse what does not exist."""
        for name in self.only:
            task(name, self.profile, self.tuned)
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"seeds must be different integers of at least 0, but {list(self.seeds)} came")

    @property
    def tasks(self) -> list[Task]:
        """Return the data sets in the paper's order."""
        return [task(name, self.profile, self.tuned) for name in task_names() if not self.only or name in self.only]

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of tables 1 and 2."""
        return columns.chosen(self.selectors)

    def run(self, task: Task, delays: str, column: Column, seed: int, **changes: Any) -> Run:
        """Return a run with the options that were tuned for it."""
        tuned = self.tuned or Tuned.packaged()
        options = tuned.options(task.name, delays, column.label) if self.profile == "quick" else {}
        if not options and column.label in columns.TUNED:
            options = columns.TUNED[column.label](task.k)[0]
        return Run(task, delays, column, seed, {**options, **changes.pop("options", {})}, **changes)


Plan = Callable[[Request], list[Wanted]]


def cells(request: Request, *tables: str) -> list[Wanted]:
    """Return the runs of tables 1 and 2: seeds outermost, so that whatever is there when they are stopped is paired."""
    return [
        Wanted(f"{table}/{one.name}/{column.label}", request.run(one, DELAYS[table], column, seed))
        for seed in request.seeds
        for one in request.tasks
        for column in request.columns
        for table in tables or DELAYS
    ]


def table3(request: Request) -> list[Wanted]:
    """Return the paper's three sweeps of its own schemes, and its number of clients per round."""
    own = columns.chosen(paper.OWN)
    found: list[Wanted] = []
    for seed in request.seeds:
        for column in own:
            for part, runs in _sweeps(request, column, seed):
                found += [Wanted(f"table3/{part}/{column.label}", run, target) for run, target in [runs]]
        (sampling,) = columns.chosen(paper.OWN[1:])
        quadratic = _task(request, "quadratic")
        for k in COHORTS:
            if quadratic is None:
                break
            run = request.run(quadratic, "nycmesh", sampling, seed, options={"k": max(1, k * quadratic.clients // 100)})
            found.append(Wanted(f"table3/k={k}/{sampling.label}", run))
    return found


def _sweeps(request: Request, column: Column, seed: int) -> list[tuple[str, tuple[Run, float | None]]]:
    found: list[tuple[str, tuple[Run, float | None]]] = []
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
        for column in columns.chosen(MOTIVATION)
    ]


def constants(request: Request) -> list[Wanted]:
    """Return what the paper's hidden constants decide, on Quadratic under both delay models."""
    quadratic = _task(request, "quadratic")
    if quadratic is None:
        return []
    submodular, sampling = columns.chosen(paper.OWN)
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


def _task(request: Request, name: str) -> Task | None:
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
