"""Virtual seconds until a target is held, for every scheme: {four tasks} x {two delay models} x {delays independent of
the data, slow clients hold the rare data} x {an easy target, a hard one}, on data inside the packages.

    python benchmarks/time_to_target.py --tune rates                   step sizes, on seeds that are never reported
    python benchmarks/time_to_target.py --tune options                 the options of every scheme, on the same seeds
    python benchmarks/time_to_target.py --tune options --heats 1 --around digits-2    server rates only, one run each
    python benchmarks/time_to_target.py --jobs 2                       the whole grid: a JSON object, a table on stderr
    python benchmarks/time_to_target.py --cells digits-0.3/nycmesh --seeds 100,101 --schemes random,pace
    python benchmarks/time_to_target.py --variant bold=flanp:k=5,growth=3.0 --schemes random
    python benchmarks/time_to_target.py --reanalyse runs/grid --png docs/grid.png --markdown
    python benchmarks/time_to_target.py --images                       MNIST and FashionMNIST, where they are present
    python benchmarks/time_to_target.py --delays devices               real phones: a column beside the two
    python benchmarks/time_to_target.py --natural --delays devices     writers and speaking roles, where present
    python benchmarks/time_to_target.py --held                         slow clients alone hold two classes of digits
    python benchmarks/time_to_target.py --held-out                     17 federations that nothing was tuned on
    python benchmarks/time_to_target.py --give-up 4                    a run ends 4 times as late as pace-async holds
    python benchmarks/time_to_target.py --recorded FILE                rows of a result file, in place of running again
    python benchmarks/time_to_target.py --tables DIR                   federations with natural clients: grid/tables.py

Targets belong to a seed: they are relative to what full participation reaches under it. Accuracy: 5 points below its
plateau, and 1 point. Quadratic loss: the paper's 2.95, and 1 % of the way from the plateau to the initial model. A
target counts from when it is held: the mean over ten instants, a median expected delay apart, meets it.

Everything is charged from second 0 on. Schemes that must hear of every client first warm up on the clock: they wait for
a quarter of the clients, whose training is the first step, and know the others when they answer. Expected delays are
known to all schemes; probes are free. `free` in the output has the same with warm-ups that cost nothing and train
nothing, as the paper counts, `first` with the first crossing of the target in place of the one that is held.

The step size of a cell is tuned for random and is the same for all schemes; the options of every scheme but `pace`,
which has none to choose, are tuned for each task under each delay model (`grid/tuned.json`, with all that was tried).

Every finished run is a line of DIR/results.jsonl; what is there already is not run again, unless `--again` says so.
With --give-up N a run ends once the hard target cannot be held within N times the longest time that another scheme
(--give-up-on) took in the cell; it counts with that time, and factors over it are marked as lower bounds. With
--to-beat it also ends once the scheme takes more times as long as that other under its seed than the best recorded
rival of the cell does in the mean over the seeds that are run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from grid.analysis import summarise
from grid.cells import Cell, Task
from grid.economy import Economy
from grid.runs import FullJob, Job, Row, full_participation, run
from grid.schemes import BASELINE, MODES, Mode, Scheme
from grid.store import Rows, spread
from grid.tuning import Tuned, full_key, key
from lib import held_out

from grid import cells as grid_cells
from grid import markdown, picture, racing, recorded, sceptic, schemes, tables, tuning


def main() -> None:
    """Run what is missing, then say what came out."""
    options = arguments()
    tasks: Sequence[Task] = grid_cells.PUBLIC if options.images else grid_cells.EMBEDDED
    default = "runs/grid-images" if options.images else "runs/grid"
    if options.held:
        tasks, default = grid_cells.HELD, "runs/grid-held"
    if options.held_out:
        tasks, default = grid_cells.HELD_OUT, "runs/grid-held-out"
        options.variant += held_out.RIVALS
    if options.natural:
        tasks, default = grid_cells.NATURAL, "runs/grid-natural"
    if options.tables:
        tasks, default = tables.tasks(options.tables), "runs/grid-tables"
    folder = Path(options.reanalyse or options.out or default)
    tuned = Tuned(Path(options.tuned) if options.tuned else tuning.FILE)
    delays = grid_cells.delay_models(options.delays)
    cells = grid_cells.cells(tasks, matching=options.cells, delays=delays)
    wanted = schemes.chosen(options.schemes, options.variant)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    if options.tune == "rates":
        for task in {cell.task.name: cell.task for cell in cells}.values():
            tuning.tune_rates(task, grid_cells.cells([task], delays=delays), folder, options.jobs, tuned=tuned)
        return
    if options.tune == "options":
        racing.tune_options(
            cells,
            wanted,
            folder,
            options.jobs,
            tuned=tuned,
            factors=options.factors,
            heats=options.heats,
            around=options.around,
            give_up=options.give_up or racing.CUT,
            yardstick=schemes.chosen(options.give_up_on, [])[0],
            recorded=[row for file in options.recorded for row in recorded.read(Path(file))],
        )
        return
    results = Rows(folder / "results.jsonl", key)
    recorded.add(results, options.recorded, afresh=options.afresh.split(","))
    if not options.reanalyse:
        modes = MODES if not options.charged_only else MODES[:1]
        fill(results, cells, wanted, seeds, folder, options, tuned, modes)
    rows = current(results, cells, wanted, seeds, Rows(folder / "targets.jsonl", full_key), tuned)
    if not rows:
        raise SystemExit(f"{folder} holds no runs of these cells, seeds and schemes as they are tuned now")
    summary = summarise(rows, flagship=options.flagship)
    print(picture.table(summary), file=sys.stderr)
    if options.png:
        beside = [row for file in options.beside for row in recorded.read(Path(file))]
        picture.draw(sceptic.Judged([*rows, *beside], options.flagship), Path(options.png))
    if options.markdown:
        print(sceptic.page(rows, options.flagship), markdown.judgements(summary), sep="\n\n")
        return
    facts = {
        "benchmark": "time_to_target",
        "seeds": seeds,
        "step_sizes": {cell.name: tuned.rate(cell) for cell in cells},
        "runs": len(rows),
        "cpu_seconds": round(sum(row["cpu_seconds"] for row in rows)),
    }
    print(recorded.written({**facts, **summary}))


def current(
    results: Rows,
    cells: Sequence[Cell],
    wanted: Sequence[Scheme],
    seeds: Sequence[int],
    targets: Rows,
    tuned: Tuned,
) -> list[Row]:
    """Return the rows of what these schemes are now: with the step sizes, options and targets that hold.

    Where the folder has no targets, rows can only come from result files, with the targets they had.
    """
    found = []
    for cell in cells:
        for seed in seeds:
            full = targets.rows.get((cell.task.name, tuned.reference(cell.task), seed))
            aims = full["targets"] if full else None
            found += [
                _row(results, tuned.scheme(scheme, cell), cell, seed, tuned, mode, aims)
                for scheme in wanted
                for mode in MODES
            ]
    return [row for row in found if row is not None]


def fill(
    results: Rows,
    cells: Sequence[Cell],
    wanted: Sequence[Scheme],
    seeds: Sequence[int],
    folder: Path,
    options: argparse.Namespace,
    tuned: Tuned,
    modes: Sequence[Mode],
) -> None:
    """Run what the folder lacks: first full participation, which sets the targets, then random, then the others."""
    targets = Rows(folder / "targets.jsonl", full_key)
    tasks = {cell.task.name: cell.task for cell in cells}.values()
    tuned.warn(cells, wanted)
    full = [FullJob(task, tuned.reference(task), seed) for seed in seeds for task in tasks]
    for row in spread(
        full_participation, [job for job in full if (job.task.name, job.rate, job.seed) not in targets], options.jobs
    ):
        targets.add(row)
    # The yardstick, where there is one, says when runs are given up, and random how long the others may take.
    yardstick = schemes.chosen(options.give_up_on, [])[0] if options.give_up else None
    first = [BASELINE] if yardstick is None else [yardstick.label, BASELINE]
    rest = [s for s in wanted if s.label not in first]
    for some in (*([s for s in wanted if s.label == label] for label in first), rest):
        saving = Economy()
        if yardstick is not None:
            so_far = [row for row in results.rows.values() if row["seed"] in seeds] if yardstick not in some else ()
            saving = Economy.of(so_far, yardstick, cells, tuned, options.give_up)
            if options.to_beat:
                known = sceptic.Judged([row for row in so_far if row["mode"] == "charged"], yardstick.label)
                saving = replace(saving, beat=known.to_beat())
        jobs = [
            job
            for seed in seeds
            for scheme in some
            for mode in scheme.modes
            if mode in modes
            for job in jobs_of(scheme, cells, seed, mode, results, targets, tuned, saving, again=options.again)
        ]
        jobs.sort(key=lambda job: (job.task.name, job.seed))  # a worker then draws the data once for all of them
        for rows in spread(run, [replace(job, on_grid=options.on_grid) for job in jobs], options.jobs):
            for row in rows:
                results.add(row)
                print(
                    f"{row['cell']} {row['scheme']} seed {row['seed']} {row['mode']}: {row['status']}, easy "
                    f"{row['easy']['seconds']}, hard {row['hard']['seconds']}, {row['rounds']} rounds of "
                    f"{row['clients']:.1f} clients, {row['cpu_seconds']} CPU s",
                    file=sys.stderr,
                )


def jobs_of(
    scheme: Scheme,
    cells: Sequence[Cell],
    seed: int,
    mode: Mode,
    results: Rows,
    targets: Rows,
    tuned: Tuned,
    saving: Economy,
    *,
    again: bool,
) -> list[Job]:
    """Return the runs of a scheme that are due, those that share a trajectory as one."""
    together: dict[Any, list[tuple[Scheme, Cell]]] = {}
    for cell in cells:
        if not scheme.runs_on(cell.task.data):
            continue
        given = tuned.scheme(scheme, cell)
        aims = targets.rows[cell.task.name, tuned.reference(cell.task), seed]["targets"]
        found = _row(results, given, cell, seed, tuned, mode, aims)
        if not again and found is not None and saving.serves(found):
            continue
        place = (cell.task.name, str(dict(given.options)), tuned.rate(cell) * given.factor)
        together.setdefault(place if given.blind(mode) else cell.name, []).append((given, cell))
    jobs = []
    for pairs in together.values():
        given, first = pairs[0]
        aims = targets.rows[first.task.name, tuned.reference(first.task), seed]["targets"]
        pars = {}
        for _, cell in pairs:
            random = _row(results, Scheme(BASELINE, BASELINE), cell, seed, tuned, "charged", aims)
            if scheme.label != BASELINE and (par := saving.par(random)):
                pars[cell.name] = par
        here = tuple(cell for _, cell in pairs)
        jobs.append(Job(given, here, tuned.rate(first) * given.factor, seed, aims, mode, pars, saving.limits(seed)))
    return jobs


def _row(
    results: Rows, scheme: Scheme, cell: Cell, seed: int, tuned: Tuned, mode: Mode, aims: Mapping[str, float] | None
) -> Row | None:
    """Return the row of a run, if it is there and had the targets of now."""
    found = results.rows.get(
        key(
            {
                "cell": cell.name,
                "scheme": scheme.label,
                "options": dict(scheme.options),
                "seed": seed,
                "lr": tuned.rate(cell) * scheme.factor,
                "mode": mode,
            }
        )
    )
    if found is None or (aims is not None and not recorded.same_target(found, aims["hard"])):
        return None
    return found


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemes", default="", help="comma-separated labels; default: all but the parts of pace")
    parser.add_argument("--variant", action="append", default=[], metavar="LABEL=NAME:KEY=VALUE,...", help="repeatable")
    parser.add_argument("--cells", default="", help="parts of the cells' names, such as digits-0.3/nycmesh,quadratic")
    parser.add_argument("--delays", default="", help="delay models (default: synthetic,nycmesh); devices: real phones")
    parser.add_argument("--seeds", default="0,1,2,3,4", help="default: 0,1,2,3,4; 100 and above are for tuning")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--out", default="", metavar="DIR", help="where results are kept (default runs/grid)")
    parser.add_argument(
        "--again", action="store_true", help="run what is there already once more; the later row counts"
    )
    parser.add_argument("--charged-only", action="store_true", help="leave the runs with free warm-ups out")
    parser.add_argument(
        "--on-grid", action="store_true", help="also judge all schemes by instants of one grid; runs take a bit longer"
    )
    parser.add_argument(
        "--give-up", type=float, default=0.0, metavar="N", help="end a run that holds N times as late (0 = never)"
    )
    parser.add_argument(
        "--give-up-on", default="pace-async", metavar="LABEL", help="than this scheme at its slowest in the cell"
    )
    parser.add_argument(
        "--to-beat",
        action="store_true",
        help="with --give-up: end a run too once it is slower than the best recorded rival of its cell",
    )
    parser.add_argument(
        "--recorded", action="append", default=[], metavar="FILE", help="rows of a result file count too; repeatable"
    )
    parser.add_argument("--afresh", default="", metavar="LABELS", help="schemes whose recorded rows are out of date")
    parser.add_argument("--reanalyse", default="", metavar="DIR", help="run nothing: tables of what the folder holds")
    parser.add_argument("--flagship", default=schemes.FLAGSHIP, help="label of the scheme that is judged")
    parser.add_argument("--png", default="", metavar="FILE", help="draw the picture too; needs matplotlib")
    parser.add_argument(
        "--beside", action="append", default=[], metavar="FILE", help="rows that count in the picture only; repeatable"
    )
    parser.add_argument("--markdown", action="store_true", help="print the tables of docs/results.md instead of JSON")
    parser.add_argument("--tune", choices=("rates", "options"), help="choose step sizes, or the schemes' options")
    parser.add_argument("--factors", action="store_true", help="with --tune options: a third and 3 times the step size")
    parser.add_argument(
        "--heats", type=int, default=len(racing.HEATS), help="with --tune options: runs of each setting that goes on"
    )
    parser.add_argument(
        "--around", default="", metavar="TASK", help="with --tune options: only server rates around this task's choice"
    )
    parser.add_argument("--tuned", default="", metavar="FILE", help="what was chosen (default grid/tuned.json)")
    parser.add_argument("--images", action="store_true", help="MNIST and FashionMNIST instead")
    parser.add_argument("--held", action="store_true", help="slow clients alone hold two classes of digits instead")
    parser.add_argument("--held-out", action="store_true", help="federations that nothing was tuned on instead")
    parser.add_argument("--natural", action="store_true", help="FEMNIST by writer, Shakespeare by role instead")
    parser.add_argument("--tables", default="", metavar="DIR", help="the tables of a folder instead")
    return parser.parse_args()


if __name__ == "__main__":
    main()
