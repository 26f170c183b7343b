"""Time against client work: what a target costs in both, for schemes with more or fewer clients at work.

    python benchmarks/front.py --out runs/front                            run what is missing, print a JSON object
    python benchmarks/front.py --out runs/front --png docs/front.png       and draw it
    python benchmarks/front.py --from benchmarks/front.json --png docs/front.png     nothing is run
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
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from grid.cells import LEVELS, Cell
from grid.runs import HOLD, FullJob, Row, full_participation, prepare
from grid.schemes import Scheme
from grid.store import Rows, spread
from grid.tuning import Tuned, full_key

from fedpace._base.checks import FloatArray
from fedpace.records.holding import Holding
from fedpace.report.picture import new_figure, readable_ticks, save, tidy
from fedpace.report.style import FIXED, INK
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
FAMILY_NAMES = {
    "pace-async, priced": "pace-async, price of work 0 to 1",
    "pace-async, capped": "pace-async, at most 3 to 30 clients at work",
    "pace": "pace",
    "fedbuff": "fedbuff, at most 5 to all clients at work",
    "random": "random, 3 to 30 clients per round",
}
NAME_SIZE = (5.5, 11.0)
"""Width of a letter and height of the names of points, in points."""
MARK = 5.0
"""Half the size of a mark, in points."""
NAME_DISTANCES = (9, 12, 16, 22)
"""Distances between a point and its name, in points; nearer ones come first."""
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
    found: dict[str, Any] = {
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
    if options.file:
        draw(json.loads(Path(options.file).read_text(encoding="utf-8"))["cells"], Path(options.png))
        return
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
    said = "In these cells, every setting of fedbuff and random takes more time"
    return f"{said}\nand more work than some setting of pace-async"


def draw(summary: dict[str, Any], path: Path) -> None:
    """Draw time against work, a row per cell and a column per target; down and left is better."""
    figure = new_figure(7.4, 2.7 * len(summary) / 2 + 1.4)
    panels = figure.subplots(-(-len(summary) // 2), 2, squeeze=False).ravel()
    for axes, (name, families) in zip(panels, summary.items(), strict=True):
        task, delays, *_, level = name.replace(", ", "/").split("/")
        tidy(axes, "", "seconds to the target", "client work in seconds")
        axes.set_title(f"{NAMES.get(task, task)} · {delays} · {level}", loc="left", fontsize=10, color=INK)
        for family, points in families.items():
            met = [point for point in points if "seconds" in point]
            axes.plot(
                [p["seconds"] for p in met], [p["work"] for p in met], STYLE[family], label=FAMILY_NAMES[family],
                markersize=12 if family == "pace" else 5, color=_colour(family),
            )  # fmt: skip
        axes.set(xscale="log", yscale="log")
        axes.margins(0.12)
        for up in (False, True):
            readable_ticks(axes, True, y=up, room=60 if up else 15)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=10)
    figure.suptitle(_message(summary), x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK)
    figure.draw_without_rendering()  # places the panels
    for axes, families in zip(panels, summary.values(), strict=True):
        _name_ends(axes, families)
    save(figure, path)


def _colour(family: str) -> str:
    return FIXED[family.partition(",")[0]].colour


def _name_ends(axes: Any, families: dict[str, list[dict[str, Any]]]) -> None:
    """Write the settings at both ends of each curve, where they cover least; those between lie in order."""
    points_per_pixel = 72 / axes.figure.dpi
    curves = {}
    for family, points in families.items():
        met = [point for point in points if "seconds" in point]
        places = [(point["seconds"], point["work"]) for point in met]
        curves[family] = (met, axes.transData.transform(places).reshape(-1, 2) * points_per_pixel)
    low, high = (corner * points_per_pixel for corner in axes.bbox.get_points())
    covered = np.vstack([_dense(at) for _, at in curves.values()])
    for family, (met, at) in curves.items():
        for end in dict.fromkeys((0, len(met) - 1)) if met and met[0]["label"] else ():
            size = np.array([NAME_SIZE[0] * len(met[end]["label"]), NAME_SIZE[1]])
            costs = [_hidden(at[end] + one, size, covered, low, high) for one in _around(size)]
            place = _around(size)[int(np.argmin(costs))]
            axes.annotate(
                met[end]["label"], (met[end]["seconds"], met[end]["work"]), xytext=tuple(place),
                textcoords="offset points", ha="center", va="center", fontsize=9,
                color=_colour(family),
            )  # fmt: skip
            covered = np.vstack([covered, _dense(at[end] + place + np.array([[-0.3, 0], [0.3, 0]]) * size)])


def _dense(places: FloatArray) -> FloatArray:
    """Return the points of the marks at these places, and of the line through them, about one point apart."""
    within = np.linspace(-MARK, MARK, 6)
    parts = [place + np.column_stack([each.ravel() for each in np.meshgrid(within, within)]) for place in places]
    for start, end in pairwise(places):
        parts.append(np.linspace(start, end, 2 + int(np.abs(end - start).max())))
    return np.vstack(parts)


def _around(size: FloatArray) -> list[FloatArray]:
    """Return possible centres of a name around its point, the nearest first."""
    angles = np.linspace(0, 2 * np.pi, 16, endpoint=False)
    directions = np.column_stack([np.cos(angles), np.sin(angles)])
    return [each * (distance + np.array([size[0] / 2 - 3, 0])) for distance in NAME_DISTANCES for each in directions]


def _hidden(centre: FloatArray, size: FloatArray, covered: FloatArray, low: FloatArray, high: FloatArray) -> float:
    """Return how much a name would cover, and how far it would be outside of its panel."""
    apart = np.abs(covered - centre)
    outside = np.maximum(low - (centre - size / 2), 0) + np.maximum(centre + size / 2 - high, 0)
    return float((apart < size / 2).all(axis=1).sum()) + 10 * float(outside.sum())


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default=CELLS, help="parts of cells' names, comma-separated")
    parser.add_argument("--seeds", default="0,1,2", help="default: 0,1,2")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", default="runs/front", metavar="DIR", help="where runs are kept")
    parser.add_argument("--from", dest="file", default="", metavar="FILE", help="run nothing, take these points")
    parser.add_argument("--png", default="", metavar="FILE", help="draw it; needs matplotlib")
    return parser.parse_args()


if __name__ == "__main__":
    main()
