"""How much clients should train: local progress against local steps, and races of schemes that set work.

    python benchmarks/work.py --progress                                local progress against local steps, a minute
    python benchmarks/work.py --json benchmarks/work.json               the races: 24 cells, 5 fresh seeds
    python benchmarks/work.py --schemes fixed,fedcompass --seeds 800    rivals that set work
    python benchmarks/work.py --from benchmarks/work.json               the table of a file, and run nothing

Races: `pace-async` with `work = "adaptive"` against `fixed`, on the cells of the grid (benchmarks/time_to_target.py),
with its tuned step sizes, its targets and its way of counting: virtual seconds until the easy and the hard target is
held. Ratios above 1: faster than `fixed`. Client work: seconds that all clients together spent until the hard target
was held, relative to `fixed`. A run is given up after four times the time of `fixed`, and counts with that. Rivals have
the options that were best on development seed 100, for each task under each delay model (`--tune`).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from grid.cells import EMBEDDED, LEVELS, PUBLIC, Cell, cells, delay_models
from grid.options import OPTIONS
from grid.runs import FullJob, Job, _Clocked, full_participation, one_thread, prepare
from grid.schemes import Scheme
from grid.tuning import FILE, Tuned
from lib.runs import Runs, commit

from fedpace import make_selector
from fedpace.sim.torch_trainer import DivergedError

GIVE_UP = 4.0
"""Times as long as `fixed` takes to the hard target, after which a run ends."""
AMOUNTS = (0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0)
LOOKS = (0, 3, 10, 30)
"""Steps after which local progress is measured."""
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "fixed": ("pace-async", {}),
    "adaptive": ("pace-async", {"work": "adaptive"}),
}


def progress() -> Iterator[dict[str, Any]]:
    """Yield how far the mean of all clients' updates gets with other work, along the mean with work 1.

    `along`: that part. `spread`: variance between clients' updates over the squared length of their mean. `elasticity`:
    slope of log `along` against log work between a half and twice the usual work.
    """
    tuned = Tuned(FILE)
    for cell in cells(EMBEDDED, matching="synthetic/independent"):
        simulation = prepare(cell, make_selector("pace-async"), tuned.rate(cell), 900)
        clients = list(range(simulation.trainer.data.clients))
        for current in simulation.rounds():
            if current.number in LOOKS:
                model = simulation.parameters
                rows = {}
                for work in AMOUNTS:
                    trained = simulation.engine.train(model, clients, 10**6, None, [work] * len(clients))
                    rows[work] = np.array([np.asarray(one.parameters - model, dtype=np.float64) for one in trained])
                usual = rows[1.0].mean(0)
                along = {work: float(rows[work].mean(0) @ usual / (usual @ usual)) for work in AMOUNTS}
                spread = {
                    work: float(rows[work].var(0).sum() / (rows[work].mean(0) ** 2).sum()) for work in (0.2, 0.5, 1.0)
                }
                ratio = along[2.0] / along[0.5]
                yield {
                    "task": cell.task.name,
                    "step": current.number,
                    "along": {str(work): round(part, 3) for work, part in along.items()},
                    "spread": {str(work): round(part, 2) for work, part in spread.items()},
                    "elasticity": round(math.log(ratio) / math.log(4), 2) if ratio > 0 else None,
                }
            if current.number >= LOOKS[-1]:
                break


_targets: dict[tuple[str, float, int], Any] = {}


def targets(cell: Cell, rate: float, seed: int) -> Any:
    """Return the targets of a task under a seed."""
    key = (cell.task.name, rate, seed)
    if key not in _targets:
        _targets[key] = full_participation(FullJob(cell.task, rate, seed))["targets"]
    return _targets[key]


def race(cell: Cell, name: str, options: dict[str, Any], seed: int, rate: float, cut: float | None) -> dict[str, Any]:
    """Return when a scheme holds the targets of a cell, and the client-seconds until the hard one."""
    fits = min(options.get("k", 1), cell.task.data.clients)
    selector = make_selector(name, **{**options, **({"k": fits} if "k" in options else {})})
    simulation = prepare(cell, selector, rate, seed, charged=False)
    scheme = Scheme(name, name, options)
    cuts = {} if cut is None else {cell.name: cut}
    job = Job(scheme, (cell,), rate, seed, targets(cell, rate, seed), cuts=cuts)
    clocked, work, spent = _Clocked(job, cell, simulation), 0.0, {}
    try:
        for current in simulation.rounds():
            clocked.add(current)
            work += current.work or 0.0
            spent[current.number] = work
            if clocked.status:
                break
    except DivergedError:
        clocked.status = "diverged"
    held = {level: clocked.met(level) for level in LEVELS}
    reached = held["hard"]["round"]
    return {
        **{level: held[level]["seconds"] for level in LEVELS},
        "work": None if reached is None else spent[reached],
        "steps": clocked.rounds,
        "status": clocked.status or "limit",
    }


def key(cell: str, scheme: str, options: dict[str, Any], seed: int) -> str:
    """Return the name of a run."""
    given = ",".join(f"{name}={value}" for name, value in sorted(options.items()))
    return f"{cell} | {scheme} | {given} | {seed}"


def best_options(done: dict[str, Any], scheme: str, group: str) -> dict[str, Any]:
    """Return a rival's options with the least time to the hard target on the development seed, in a group of cells."""
    found: list[Any] = []
    for options in OPTIONS[scheme]:
        end = key("", scheme, options, 100).removeprefix(" |")
        runs = [run for name, run in done.items() if name.startswith(group) and name.endswith(end)]
        if runs:
            found.append((np.mean([math.log(run["hard"] or run["cut"]) for run in runs]), len(found), options))
    return min(found)[2] if found else OPTIONS[scheme][0]


def summaries(done: dict[str, Any]) -> dict[str, Any]:
    """Return the summary of the grid's cells, and that of images if they were run."""
    sets = {"grid": EMBEDDED, "images": PUBLIC}
    found = {
        name: summary({run: result for run, result in done.items() if run.startswith(tuple(t.name for t in tasks))})
        for name, tasks in sets.items()
    }
    return {name: each for name, each in found.items() if each}


def summary(done: dict[str, Any], against: str = "fixed") -> dict[str, Any]:
    """Return geometric means of the ratios to `fixed`, by scheme and delay model, and the worst cell."""
    by: dict[tuple[str, str, int], dict[str, Any]] = {}
    for name, run in done.items():
        cell, scheme, _, number = name.split(" | ")
        if int(number) >= 800:
            by[cell, scheme, int(number)] = run
    ratios: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for (cell, scheme, seed), run in by.items():
        base = by.get((cell, against, seed))
        if scheme == against or base is None or not base["hard"]:
            continue
        for level in LEVELS:
            if base[level]:
                value = base[level] / (run[level] or GIVE_UP * base["hard"])
                ratios[scheme][cell][level].append(value)
        if run["work"]:
            ratios[scheme][cell]["work"].append(run["work"] / base["work"])
    found: dict[str, Any] = {}
    for scheme, each in ratios.items():
        found[scheme] = {
            "cells": {cell: {what: _mean(values) for what, values in kinds.items()} for cell, kinds in each.items()}
        }
        groups = sorted({cell.split("/")[1] for cell in each})
        for group in [*groups, "all"]:
            chosen = [kinds for cell, kinds in each.items() if group in ("all", cell.split("/")[1])]
            found[scheme][group] = {
                what: _mean([_mean(kinds[what]) for kinds in chosen if kinds.get(what)]) for what in (*LEVELS, "work")
            }
            found[scheme][group]["cells"] = len(chosen)
            found[scheme][group]["slowest cell"] = {
                level: min(mean for kinds in chosen if (mean := _mean(kinds[level])) is not None) for level in LEVELS
            }
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the geometric mean; None without values."""
    known = [value for value in values if value is not None]
    return round(math.exp(float(np.mean(np.log(known)))), 3) if known else None


def main() -> None:
    """Run what is missing, and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--progress", action="store_true", help="local progress against local steps")
    parser.add_argument("--schemes", default="fixed,adaptive", help="fixed first; adaptive, and rivals by name")
    parser.add_argument("--seeds", default="800,801,802,803,804")
    parser.add_argument("--cells", default="", help="pieces of their names; all where left out")
    parser.add_argument("--delays", default="synthetic,nycmesh,devices")
    parser.add_argument("--images", action="store_true", help="MNIST and FashionMNIST instead, where they are present")
    parser.add_argument("--tune", action="store_true", help="try all options of the rivals, on seed 100")
    parser.add_argument("--out", default="runs/work", help="folder of the runs")
    parser.add_argument("--part", default="0/1", help="of the runs, so that several processes can share them")
    parser.add_argument("--from", dest="source", help="show the runs in this file, and run nothing")
    parser.add_argument("--json", help="write command, commit, date, summary and all runs into this file")
    options = parser.parse_args()
    one_thread()
    if options.progress:
        for row in progress():
            print(json.dumps(row), flush=True)
        return
    if options.source:
        print(json.dumps(summaries(json.loads(Path(options.source).read_text())["runs"]), indent=1))
        return
    tuned, runs = Tuned(FILE), Runs(options.out, options.part)
    seeds = [100] if options.tune else [int(seed) for seed in options.seeds.split(",")]
    wanted = cells(PUBLIC if options.images else EMBEDDED, matching=options.cells, delays=delay_models(options.delays))
    for seed, cell in runs.mine((seed, cell) for seed in seeds for cell in wanted):
        rate, cut = tuned.rate(cell), None
        for label in options.schemes.split(","):
            name, given = OURS.get(label, (label, {}))
            tried = [given] if label in OURS else [best_options(runs.done, label, cell.group)]
            for each in OPTIONS[label] if options.tune and label in OPTIONS else tried:
                place = key(cell.name, label, each, seed)
                if place not in runs.done:
                    runs.add(place, {**race(cell, name, each, seed, rate, cut), "cut": cut})
                if label == "fixed":
                    cut = GIVE_UP * (runs.done[place]["hard"] or math.inf)
    found = {
        "benchmark": "work",
        "command": "python benchmarks/work.py " + " ".join(sys.argv[1:]),
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "summary": summaries(runs.done),
        "runs": dict(sorted(runs.done.items())),
    }
    print(json.dumps(found["summary"], indent=1))
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=0) + "\n")


if __name__ == "__main__":
    main()
