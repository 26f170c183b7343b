"""Virtual seconds to a target, for every scheme: {four tasks} x {two delay models} x {delays independent of the data,
slow clients hold the rare data} x {an easy target, a hard one}, on data inside the packages.

    python benchmarks/time_to_target.py --jobs 2                      the whole grid: one JSON object, a table on stderr
    python benchmarks/time_to_target.py --cells digits-0.3/nycmesh --seeds 100,101 --schemes random,pace
    python benchmarks/time_to_target.py --variant bold=flanp:k=5,growth=3.0 --schemes random
    python benchmarks/time_to_target.py --reanalyse runs/grid --png docs/grid.png
    python benchmarks/time_to_target.py --tune                         choose the step sizes anew
    python benchmarks/time_to_target.py --images                       MNIST and FashionMNIST, where they are present

Targets belong to a seed: they are relative to what full participation reaches under it. Accuracy: 5 points below its
plateau, and 1 point. Quadratic loss: the paper's 2.95, and 1 % of the way from the plateau to the initial model. The
step size of a cell is tuned on random's runs under seeds 100 to 102, which are never reported, and is the same for all
schemes (`grid/tuned.json`). As in the paper, selectors know the expected delays and the warm-up is not charged;
`charged` in the output has all of it again with the warm-up on the clock, and `charged_rolling` judges `pace` by runs
in which half of the warm-up is waited for, while the others are known when they answer.

Every finished run is a line of DIR/results.jsonl; what is there already is not run again, unless `--again` says so.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from grid import cells as grid_cells
from grid import picture, schemes, tuning
from grid.analysis import summarise
from grid.cells import Cell
from grid.runs import FullJob, Job, Row, full_participation, run
from grid.schemes import ROLLING, Scheme
from grid.store import Rows, spread


def key(row: Row) -> tuple[Any, ...]:
    """What tells two runs apart: a scheme with other options or another step size is another run."""
    return row["cell"], row["scheme"], json.dumps(row["options"], sort_keys=True), row["seed"], row["lr"]


def main() -> None:
    """Run what is missing, then say what came out."""
    options = arguments()
    tasks = grid_cells.PUBLIC if options.images else grid_cells.EMBEDDED
    folder = Path(options.reanalyse or options.out or ("runs/grid-images" if options.images else "runs/grid"))
    seeds = [int(seed) for seed in options.seeds.split(",")]
    if options.tune:
        for task in tasks:
            if cells := grid_cells.cells([task], matching=options.cells):
                every = grid_cells.cells([cells[0].task])
                tuning.tune(task, every, folder, options.jobs)
        return
    results = Rows(folder / "results.jsonl", key)
    if options.reanalyse:
        rows = list(results.rows.values())
    else:
        cells = grid_cells.cells(tasks, matching=options.cells)
        wanted = schemes.chosen(options.schemes, options.variant, few=options.images)
        fill(results, cells, wanted, seeds, folder, options)
        # Everything in the folder takes part in the comparison, at the step size that holds now.
        rows = list(results.rows.values())
    shown = {cell.name for cell in grid_cells.cells(tasks, matching=options.cells)}
    rates = {cell.name: tuning.Tuned().rate(cell) for cell in grid_cells.cells(tasks)}
    rows = [
        row for row in rows if row["seed"] in seeds and row["lr"] == rates.get(row["cell"]) and row["cell"] in shown
    ]
    if not rows:
        raise SystemExit(f"{folder} holds no runs of these cells and seeds at the step sizes of grid/tuned.json")
    summary = summarise(rows, flagship=options.flagship)
    print(picture.table(summary), file=sys.stderr)
    if options.png:
        picture.draw(summary, Path(options.png))
    charged = summarise(rows, flagship=options.flagship, charged=True)
    rolling = None
    if any(row["scheme"] == ROLLING for row in rows):
        rolling = summarise(rows, flagship=ROLLING, charged=True)["verdict"]
    cpu = round(sum(row["cpu_seconds"] for row in rows))
    print(
        json.dumps(
            {
                "benchmark": "time_to_target",
                "seeds": seeds,
                "step_sizes": rates,
                "runs": len(rows),
                "cpu_seconds": cpu,
                **summary,
                "charged": charged["verdict"],
                "charged_rolling": rolling,
            },
            indent=1,
        )
    )


def fill(
    results: Rows,
    cells: list[Cell],
    wanted: list[Scheme],
    seeds: list[int],
    folder: Path,
    options: argparse.Namespace,
) -> None:
    """Run what the folder lacks: first full participation, which sets the targets, then the schemes."""
    tuned = tuning.Tuned()
    targets = Rows(folder / "targets.jsonl", tuning.full_key)
    tasks = {cell.task.name: cell.task for cell in cells}.values()
    tuned.warn(tasks)
    full = [FullJob(task, tuned.reference(task), seed) for seed in seeds for task in tasks]
    for row in spread(full_participation, [job for job in full if _full_key(job) not in targets], options.jobs):
        targets.add(row)

    jobs: list[Job] = []
    for seed in seeds:
        for task in tasks:
            aims = targets.rows[task.name, tuned.reference(task), seed]["targets"]
            for scheme in wanted:
                if not scheme.runs_on(task.data):
                    continue
                due = [
                    cell
                    for cell in cells
                    if cell.task is task
                    and (options.again or _key(scheme, cell, seed, tuned.rate(cell)) not in results)
                ]
                together = [[cell] for cell in due]
                if scheme.blind:
                    together = [
                        [cell for cell in due if tuned.rate(cell) == rate]
                        for rate in sorted({tuned.rate(cell) for cell in due})
                    ]
                jobs += [Job(scheme, tuple(group), tuned.rate(group[0]), seed, aims) for group in together]
    for rows in spread(run, jobs, options.jobs):
        for row in rows:
            results.add(row)
            print(
                f"{row['cell']} {row['scheme']} seed {row['seed']}: {row['status']}, easy {row['easy']['seconds']}, "
                f"hard {row['hard']['seconds']}, {row['rounds']} rounds of {row['clients']:.1f} clients, "
                f"{row['cpu_seconds']} CPU s",
                file=sys.stderr,
            )


def _full_key(job: FullJob) -> tuple[Any, ...]:
    return job.task.name, job.rate, job.seed


def _key(scheme: Scheme, cell: Cell, seed: int, rate: float) -> tuple[Any, ...]:
    return key({"cell": cell.name, "scheme": scheme.label, "options": scheme.options, "seed": seed, "lr": rate})


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemes", default="", help="comma-separated labels; default: all")
    parser.add_argument("--variant", action="append", default=[], metavar="LABEL=NAME:KEY=VALUE,...", help="repeatable")
    parser.add_argument("--cells", default="", help="part of the cells' names, such as digits-0.3/nycmesh")
    parser.add_argument("--seeds", default="0,1,2,3,4", help="default: 0,1,2,3,4; 100 and above are for tuning")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--out", default="", metavar="DIR", help="where results are kept (default runs/grid)")
    parser.add_argument(
        "--again", action="store_true", help="run what is there already once more; the later row counts"
    )
    parser.add_argument("--reanalyse", default="", metavar="DIR", help="run nothing: tables of what the folder holds")
    parser.add_argument("--flagship", default="pace", help="label of the scheme that is judged (default pace)")
    parser.add_argument("--png", default="", metavar="FILE", help="draw the heat map too; needs matplotlib")
    parser.add_argument("--tune", action="store_true", help="choose the step sizes and write grid/tuned.json")
    parser.add_argument("--images", action="store_true", help="MNIST and FashionMNIST instead; few schemes by default")
    return parser.parse_args()


if __name__ == "__main__":
    main()
