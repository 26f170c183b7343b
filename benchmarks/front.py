"""Time against client work: what a target costs in both, for schemes with more or fewer clients at work.

    python benchmarks/front.py --out runs/front                            run what is missing, print a JSON object
    python benchmarks/front.py --out runs/front --png docs/front.png       and draw it
    python benchmarks/front.py --out runs/front --cells quadratic/synthetic --seeds 0

Cells, step sizes and targets are those of `time_to_target.py`, charged and held; every scheme is run with several caps
or cohort sizes, which are all reported: none of them is chosen. Work is in client-seconds from second 0 until the
target is held: a client that was asked works until it answers, fails or is given up.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from grid.cells import LEVELS, Cell
from grid.runs import HOLD, FullJob, Row, full_participation, prepare
from grid.schemes import Scheme
from grid.store import Rows, spread
from grid.tuning import Tuned, full_key

from fedpace.records.holding import Holding
from fedpace.report.style import FIXED
from grid import cells as grid_cells

CELLS = "digits-0.3/synthetic/independent,digits-0.3/nycmesh/independent,digits-rotated/nycmesh/independent"
LONGEST = 3000
"""Steps after which a run has missed its target."""

PRICES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
FAMILIES: dict[str, list[tuple[str, Scheme]]] = {
    "pace-async, priced": [(f"{p:g}", Scheme(f"price {p:g}", "pace-async", {"work_price": p})) for p in PRICES],
    "pace-async, capped": [(str(n), Scheme(f"async {n}", "pace-async", {"in_flight": n})) for n in (3, 5, 10, 20, 30)],
    "pace": [("", Scheme("pace", "pace"))],
    "fedbuff": [
        (str(n or "all"), Scheme(f"fedbuff {n}", "fedbuff", {"buffer": min(10, n or 10), "in_flight": n}))
        for n in (5, 10, 20, 30, 0)
    ],
    "random": [(str(k), Scheme(f"random {k}", "random", {"k": k})) for k in (3, 5, 10, 20, 30)],
}
"""Family -> what its points are labelled with, and the scheme."""
STYLE = {"pace-async, priced": "o-", "pace-async, capped": "s--", "pace": "*", "fedbuff": "^-", "random": "v-"}
NAMES = {"digits-0.3": "digits, very uneven", "digits-rotated": "digits, rotated"}


@dataclass(frozen=True)
class Job:
    """One scheme in one cell under one seed."""

    scheme: Scheme
    cell: Cell
    rate: float
    seed: int
    targets: dict[str, float]


def run(job: Job) -> Row:
    """Return the seconds and the client-seconds until each target was held."""
    data = job.cell.task.data
    simulation = prepare(job.cell, job.scheme.selector(data.clients), job.rate, job.seed, charged=job.scheme.warms_up)
    direction: Any = "up" if data.metric == "accuracy" else "down"
    every = float(np.median(simulation.time.expected))
    held = {level: Holding(job.targets[level], direction, hold=HOLD, every=every) for level in LEVELS}
    clocks: list[float] = []
    work: list[float] = []
    for current in simulation.rounds():
        clocks.append(current.clock)
        work.append((work[-1] if work else 0.0) + (current.work or 0.0))
        for holding in held.values():
            holding.add(current.clock, current.metric)
        if held["hard"].held is not None or current.number >= LONGEST:
            break
    found = {
        level: None if held[level].held is None else {"seconds": clocks[at], "work": work[at]}
        for level in LEVELS
        for at in [held[level].held or 0]
    }
    return {"cell": job.cell.name, "scheme": job.scheme.label, "seed": job.seed, **found}


def key(row: Row) -> tuple[Any, ...]:
    """What tells two runs apart."""
    return row["cell"], row["scheme"], row["seed"]


def main() -> None:
    """Run what is missing, and print the points."""
    options = arguments()
    tuned = Tuned()
    cells = grid_cells.cells(grid_cells.EMBEDDED, matching=options.cells)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    folder = Path(options.out)
    targets = Rows(folder / "targets.jsonl", full_key)
    full = {(c.task.name, s): FullJob(c.task, tuned.reference(c.task), s) for c in cells for s in seeds}
    missing = [job for job in full.values() if (job.task.name, job.rate, job.seed) not in targets]
    for row in spread(full_participation, missing, options.jobs):
        targets.add(row)
    results = Rows(folder / "front.jsonl", key)
    jobs = [
        Job(scheme, cell, tuned.rate(cell), seed, aims)
        for seed in seeds
        for cell in cells
        for aims in [targets.rows[cell.task.name, tuned.reference(cell.task), seed]["targets"]]
        for family in FAMILIES.values()
        for _, scheme in family
        if (cell.name, scheme.label, seed) not in results
    ]
    for row in spread(run, jobs, options.jobs):
        results.add(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    summary = summarise(results, cells, seeds)
    if options.png:
        draw(summary, Path(options.png))
    print(json.dumps({"benchmark": "front", "seeds": seeds, "cells": summary}, indent=1))


def summarise(results: Rows, cells: Sequence[Cell], seeds: Sequence[int]) -> dict[str, Any]:
    """Return the points: geometric means over the seeds, for schemes that hold the target under all of them."""
    found: dict[str, Any] = {}
    for cell in cells:
        for level in LEVELS:
            place = found.setdefault(f"{cell.name}, {level}", {})
            for family, members in FAMILIES.items():
                for mark, scheme in members:
                    rows = [results.rows.get((cell.name, scheme.label, seed)) for seed in seeds]
                    met = [row[level] for row in rows if row and row[level]]
                    point = {
                        part: float(np.exp(np.mean([np.log(one[part]) for one in met]))) for part in ("seconds", "work")
                    }
                    missed = len(rows) - len(met)
                    place.setdefault(family, []).append(
                        {"label": mark, **({} if missed else {k: round(v, 1) for k, v in point.items()})}
                        | ({"missed": missed} if missed else {})
                    )
    return found


def _message(summary: dict[str, Any]) -> str:
    """Return the title: what the points show, if they do so in every panel."""
    for families in summary.values():
        ours = [p for name in families for p in families[name] if name.startswith("pace-async") and "seconds" in p]
        for point in (p for name in ("fedbuff", "random") for p in families[name] if "seconds" in p):
            if not any(p["seconds"] < point["seconds"] and p["work"] < point["work"] for p in ours):
                return "Time to the target against client work (down and left is better)"
    return "For whatever work fedbuff or random cost, pace-async can take less work and less time"


def draw(summary: dict[str, Any], path: Path) -> None:
    """Draw time against work, one panel for each cell and target; down and left is better."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    plain = FuncFormatter(lambda value, _: f"{value:,.0f}")
    columns = len(summary) // 2
    figure, axes = pyplot.subplots(2, columns, figsize=(4.6 * columns, 8.4), squeeze=False)
    for place, (name, families) in enumerate(summary.items()):
        axis = axes[place % 2][place // 2]
        for family, points in families.items():
            met = [point for point in points if "seconds" in point]
            size = 13 if family == "pace" else 5
            (line,) = axis.plot(
                [p["seconds"] for p in met], [p["work"] for p in met], STYLE[family], label=family, ms=size,
                color=FIXED[family.partition(",")[0]].colour,
            )  # fmt: skip
            # The two fronts of pace-async cross: labels of one to the left below, of the other to the right above.
            left = family == "pace-async, priced"
            for point in met:
                axis.annotate(
                    point["label"],
                    (point["seconds"], point["work"]),
                    textcoords="offset points",
                    xytext=(-4, -9) if left else (4, 4),
                    ha="right" if left else "left",
                    fontsize=7,
                    color=line.get_color(),
                )
        task, delays, *_, level = name.replace(", ", "/").split("/")
        title = f"{NAMES.get(task, task)}, {delays} delays, {level} target"
        axis.set(xscale="log", yscale="log", title=title, xlabel="seconds to the target", ylabel="client work in s")
        axis.title.set_fontsize(10)
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if side is axis.yaxis else (1.0, 3.0)))
            side.set_major_formatter(plain)
            side.set_minor_formatter(NullFormatter())
        axis.grid(visible=True, which="both", alpha=0.2)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="lower center", ncols=len(FAMILIES), frameon=False)
    figure.suptitle(_message(summary), x=0.01, ha="left", fontsize=14, fontweight="bold")
    figure.tight_layout(rect=(0, 0.04, 1, 0.99))
    figure.savefig(path, dpi=110)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default=CELLS, help="parts of cells' names, comma-separated")
    parser.add_argument("--seeds", default="0,1,2", help="default: 0,1,2")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", default="runs/front", metavar="DIR", help="where runs are kept")
    parser.add_argument("--png", default="", metavar="FILE", help="draw it; needs matplotlib")
    return parser.parse_args()


if __name__ == "__main__":
    main()
