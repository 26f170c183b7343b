"""Step sizes and options, chosen on seeds that no table reports, and written down with all that was tried.

Step sizes come first. The reference step size of a task is that with which full participation ends highest: it sets the
targets, which then are the same whatever a scheme is run with. The step size of a cell is the one with which random
holds the hard target soonest, and all schemes share it. While the largest that was tried is the best, larger ones
follow.

Options come next: every scheme is given the best of its settings (`options.py`, `controls.py`) for each task under each
delay model, by the geometric mean of its times to hold the hard target; one that misses it more often is worse, however
fast it is otherwise. Where no setting holds it, the easy target decides. `pace` has no settings to choose from. Three
things save time, and are recorded: a run is cut once it takes ten times as long as `pace-async` (`--give-up`), or more
than settings that go on; only the two settings that were fastest in the first run go on to the others (`--heats`).
After the first run of all settings the server's step size of the fastest is halved and doubled, for as long as that
helps. `--around TASK` starts from what was chosen on another task, and tunes the server's step size only; with
`--heats 0` it is taken as it is. With `factors` the chosen setting is tried with a third of the step size too, and with
three times the step size (`racing.py`).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grid.cells import Cell, Task
from grid.runs import FullJob, Job, Row, full_participation, run
from grid.schemes import BASELINE, Scheme
from grid.store import Rows, spread

FILE = Path(__file__).parent / "tuned.json"
SEEDS = (100, 101)


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
        known = self.tasks.get(cell.task.name, {}).get("cells", {})
        return float(known.get(cell.name, cell.task.training.lr))

    def scheme(self, scheme: Scheme, cell: Cell) -> Scheme:
        """Return a scheme with what was chosen for it."""
        found = self._options(cell).get(scheme.label)
        return scheme if found is None else scheme.given(found["options"], found["factor"])

    def has_options(self, scheme: Scheme, cell: Cell) -> bool:
        """Whether anything was chosen for a scheme, or there is nothing to choose from."""
        return scheme.label in self._options(cell) or len(scheme.choices()) == 1

    def chosen_on(self, task: str, label: str) -> dict[str, list[Mapping[str, Any]]]:
        """Return what was chosen for a scheme on a task, by delay model; nothing without a task."""
        found = self.tasks.get(task, {}).get("options", {})
        return {delays: [chosen[label]["options"]] for delays, chosen in found.items() if label in chosen}

    def _options(self, cell: Cell) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.tasks.get(cell.task.options_of or cell.task.name, {}).get("options", {})
        chosen: Mapping[str, Any] = found.get(cell.delays.name, {})
        return chosen

    def _has(self, task: Task) -> bool:
        return task.name in self.tasks

    def warn(self, cells: Iterable[Cell], schemes: Sequence[Scheme]) -> None:
        """Say what is not tuned."""
        cells = list(cells)
        for cell in cells:
            if cell.name not in self.tasks.get(cell.task.name, {}).get("cells", {}):
                print(f"{cell.name} is not tuned: its lr is {self.rate(cell)} (--tune rates)", file=sys.stderr)
        for group, cell in {cell.group: cell for cell in cells}.items():
            bare = [one.label for one in schemes if one.runs_on(cell.task.data) and not self.has_options(one, cell)]
            if bare:
                print(f"{group}: defaults of {', '.join(bare)} (--tune options)", file=sys.stderr)

    def keep(self, task: Task, found: Mapping[str, Any]) -> None:
        """Take over what was found for a task."""
        self.tasks.setdefault(task.name, {}).update(found)
        self._write()

    def keep_cells(self, task: Task, rates: Mapping[str, float], random: Mapping[str, Any]) -> None:
        """Take over the step sizes of cells, beside those of other cells."""
        found = self.tasks.setdefault(task.name, {})
        found.setdefault("cells", {}).update(rates)
        found.setdefault("random_to_hard", {}).update(random)
        self._write()

    def has_others(self, task: Task, cells: Iterable[Cell]) -> bool:
        """Whether other cells of a task were tuned before."""
        known = self.tasks.get(task.name, {})
        return "reference" in known and bool(set(known.get("cells", {})) - {cell.name for cell in cells})

    def keep_options(self, cell: Cell, label: str, found: Mapping[str, Any]) -> None:
        """Take over what was found for a scheme on a task under a delay model."""
        self.tasks[cell.task.name].setdefault("options", {}).setdefault(cell.delays.name, {})[label] = found
        self._write()

    def _write(self) -> None:
        self.path.write_text(json.dumps(self.tasks, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def full_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells two runs of full participation apart."""
    return row["task"], row["lr"], row["seed"]


def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells two runs apart: a scheme with other options or another step size is another run."""
    options = json.dumps(row["options"], sort_keys=True)
    return row["cell"], row["scheme"], options, row["seed"], row["lr"], row["mode"]


def tune_rates(
    task: Task, cells: Sequence[Cell], folder: Path, processes: int, *, tuned: Tuned, seeds: Sequence[int] | None = None
) -> None:
    """Choose the step sizes of a task and its cells, and write them down.

    Cells that come later, such as those of another delay model, leave the reference as it is: targets do not move.
    """
    seeds = task.tuning_seeds if seeds is None else seeds
    fixed = tuned.reference(task) if tuned.has_others(task, cells) else None
    targets = Rows(folder / "targets.jsonl", full_key)
    tried = Rows(folder / "tuning.jsonl", key)
    rates, larger = list(task.rates), list(task.larger)
    while True:
        tried_full = rates if fixed is None else [fixed]
        wanted = [FullJob(task, rate, seed) for rate in tried_full for seed in seeds]
        wanted = [job for job in wanted if (task.name, job.rate, job.seed) not in targets]
        for row in spread(full_participation, wanted, processes):
            targets.add(row)
        plateaus = {r: _plateau(task, [targets.rows[task.name, r, seed] for seed in seeds]) for r in tried_full}
        reference = (max if task.data.metric == "accuracy" else min)(tried_full, key=plateaus.__getitem__)
        aims = {seed: targets.rows[task.name, reference, seed]["targets"] for seed in seeds}

        random = Scheme(BASELINE, BASELINE)
        jobs = [Job(random, tuple(cells), rate, seed, aims[seed]) for rate in rates for seed in seeds]
        for rows in spread(run, [job for job in jobs if not _known(job, tried, aims)], processes):
            for row in rows:
                tried.add(row)
        costs = {
            cell.name: {rate: _cost([_find(tried, random, cell, seed, rate) for seed in seeds]) for rate in rates}
            for cell in cells
        }
        best = {name: min(found, key=found.__getitem__) for name, found in costs.items()}
        if not larger or max(*best.values(), reference if fixed is None else 0.0) < rates[-1]:
            break
        rates.append(larger.pop(0))
    if fixed is None:
        plain = {str(rate): _plain(value) for rate, value in plateaus.items()}
        tuned.keep(task, {"reference": reference, "plateaus": plain})
    tuned.keep_cells(
        task,
        best,
        {
            name: {str(rate): {"failed": failed, "seconds": _plain(mean)} for rate, (failed, mean) in found.items()}
            for name, found in costs.items()
        },
    )


def _known(job: Job, tried: Rows, aims: Mapping[int, Any]) -> bool:
    """Whether all rows of a job are there, for the targets as they are now."""
    found = [_find(tried, job.scheme, cell, job.seed, job.rate) for cell in job.cells]
    return all(row is not None and math.isclose(row["hard"]["target"], aims[job.seed]["hard"]) for row in found)


def _find(rows: Rows, scheme: Scheme, cell: Cell, seed: int, rate: float) -> Row | None:
    return rows.rows.get(
        key(
            {
                "cell": cell.name,
                "scheme": scheme.label,
                "options": dict(scheme.options),
                "seed": seed,
                "lr": rate,
                "mode": "charged",
            }
        )
    )


def _plateau(task: Task, rows: Sequence[Row]) -> float:
    worst = -np.inf if task.data.metric == "accuracy" else np.inf
    return float(np.mean([row["plateau"] if row["status"] == "ok" else worst for row in rows]))


def _cost(rows: Iterable[Row | None]) -> tuple[int, float]:
    """Runs that missed the hard target, and the geometric mean time of the others."""
    times = [None if row is None else row["hard"]["seconds"] for row in rows]
    met = [math.log(seconds) for seconds in times if seconds is not None]
    return len(times) - len(met), math.exp(sum(met) / len(met)) if met else math.inf


def _plain(value: float) -> float | None:
    return round(value, 4) if np.isfinite(value) else None
