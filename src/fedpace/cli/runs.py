"""`fedpace compare`, `fedpace run` and `fedpace report`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedpace.cli.common import AsJson, print_json
from fedpace.config import Experiment, Overrides, load_experiment
from fedpace.core.errors import InputError
from fedpace.core.files import json_bytes, write_atomically
from fedpace.progress import RunProgress
from fedpace.records.run import RunRecord, find_runs
from fedpace.report.numbers import counted
from fedpace.report.page import write_page
from fedpace.report.plots import write_png
from fedpace.report.summary import sentences
from fedpace.report.tables import Comparison, render_table, summarise
from fedpace.runner import check_folder, run_all, run_one
from fedpace.sim.engines.choice import EngineName, EngineOptions

ExperimentFile = Annotated[
    Path | None,
    typer.Argument(help="Experiment in TOML. Without it: real digits, inside the package.", show_default=False),
]
Out = Annotated[Path | None, typer.Option(help="Folder to write into (default: runs/NAME-TIME).", show_default=False)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the runs that the folder holds.")]
DelayName = Annotated[str | None, typer.Option("--delays", help="Another delay model, with its defaults.")]
Target = Annotated[float | None, typer.Option(help="Stop at this accuracy (or loss).")]
ChargeWarmup = Annotated[bool, typer.Option("--charge-warmup", help="Let the measuring rounds count on the clock.")]
MaxRounds = Annotated[int | None, typer.Option(help="Stop after this many rounds.")]
EngineNamed = Annotated[
    EngineName, typer.Option("--engine", help="Where clients are trained; it changes the speed, never the outcome.")
]
Workers = Annotated[int, typer.Option(help="Processes that train clients at a time; 0 = one a core.")]
RayAddress = Annotated[
    str | None,
    typer.Option(help="Ray cluster to use with --engine ray; `auto` finds the one around.", show_default=False),
]


def compare(
    experiment: ExperimentFile = None,
    selectors: Annotated[
        str | None, typer.Option(help="Comma-separated labels or names of schemes; others are left out.")
    ] = None,
    delays: DelayName = None,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds.")] = None,
    target: Target = None,
    max_rounds: MaxRounds = None,
    charge_warmup: ChargeWarmup = False,
    engine: EngineNamed = "auto",
    workers: Workers = 0,
    ray_address: RayAddress = None,
    out: Out = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Compare schemes: virtual seconds until each brings the shared model to the target."""
    names = None if selectors is None else [name.strip() for name in selectors.split(",") if name.strip()]
    if names == []:
        raise InputError("--selectors names no scheme: give one or more, separated by commas")
    if seeds is not None and seeds < 1:
        raise InputError(f"--seeds must be at least 1, but {seeds} came")
    options = EngineOptions(engine, workers, ray_address)
    chosen = load_experiment(
        experiment, Overrides(names, delays, None if seeds is None else range(seeds), target, max_rounds, charge_warmup)
    )
    folder = _folder(out, chosen, overwrite)
    console = Console(stderr=as_json)
    _announce(console, chosen, folder, quiet=as_json)
    runs_wanted = len(chosen.schemes) * len(chosen.seeds)
    with RunProgress(chosen, runs_wanted, console, quiet=as_json) as progress:
        runs = run_all(chosen, folder, progress.watch, engine=options, overwrite=overwrite)
    comparison = _write_report(runs, folder, chosen.name)
    _show(comparison, folder, console, as_json=as_json)


def run(
    experiment: ExperimentFile = None,
    selector: Annotated[
        str | None, typer.Option(help="Label or name of the scheme (default: the first).", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of data, model, delays and selection.")] = 0,
    delays: DelayName = None,
    target: Target = None,
    max_rounds: MaxRounds = None,
    charge_warmup: ChargeWarmup = False,
    engine: EngineNamed = "auto",
    workers: Workers = 0,
    ray_address: RayAddress = None,
    out: Out = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Run one scheme once."""
    if seed < 0:
        raise InputError(f"--seed must be at least 0, but {seed} came")
    options = EngineOptions(engine, workers, ray_address)
    overrides = Overrides(None if selector is None else [selector], delays, [seed], target, max_rounds, charge_warmup)
    chosen = load_experiment(experiment, overrides)
    chosen = dataclasses.replace(chosen, schemes=chosen.schemes[:1])
    folder = _folder(out, chosen, overwrite)
    console = Console(stderr=as_json)
    _announce(console, chosen, folder, quiet=as_json)
    with RunProgress(chosen, 1, console, quiet=as_json) as progress:
        record = run_one(chosen, chosen.schemes[0], seed, folder, progress.watch, engine=options, overwrite=overwrite)
    last, info = record.rounds[-1], record.info
    summary = {
        "folder": str(folder),
        "label": info.label,
        "seed": info.seed,
        "status": info.status,
        "message": info.message,
        "rounds": last.number,
        "virtual_seconds": last.clock,
        info.metric: last.metric,
        "target": info.target,
        "engine": info.engine,
    }
    if as_json:
        print_json(summary)
    else:
        console.print(
            f"{info.label}, seed {seed}: {info.status} after {last.number} rounds and {last.clock:,.0f} virtual "
            f"seconds, {info.metric} {last.metric:.4g}. {info.message}",
            highlight=False,
            markup=False,
        )
        console.print(f"Engine: {info.engine['name']} ({info.engine['why']})", highlight=False, markup=False)
        console.print(f"Recorded in {folder}", highlight=False, markup=False)


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of `fedpace compare` or `fedpace run`.")],
    as_json: AsJson = False,
) -> None:
    """Build table, page and picture anew from recorded runs, finished or not."""
    runs = find_runs(folder)
    name = str(runs[0].info.experiment.get("name", folder.name))
    _show(_write_report(runs, folder, name), folder, Console(), as_json=as_json)


def _folder(out: Path | None, experiment: Experiment, overwrite: bool) -> Path:
    folder = out or Path("runs") / f"{experiment.name}-{datetime.now():%Y%m%d-%H%M%S}"
    check_folder(folder, overwrite=overwrite)
    return folder


def _announce(console: Console, experiment: Experiment, folder: Path, *, quiet: bool) -> None:
    if quiet:
        return
    names = ", ".join(scheme.label for scheme in experiment.schemes)
    seeds = counted(len(experiment.seeds), "seed")
    console.print(
        f"{experiment.name}: {experiment.data.name} with {experiment.model.name} under {experiment.delays.name} "
        f"delays; {names}; {seeds}; into {folder}",
        highlight=False,
        markup=False,
    )


def _write_report(runs: Sequence[RunRecord], folder: Path, title: str) -> Comparison:
    comparison = summarise(runs)
    write_atomically(folder / "comparison.json", json_bytes(comparison.as_json()))
    write_page(runs, comparison, folder / "report.html", title=title)
    write_png(runs, comparison, folder / "report.png")
    return comparison


def _show(comparison: Comparison, folder: Path, console: Console, *, as_json: bool) -> None:
    if as_json:
        print_json({"folder": str(folder), **comparison.as_json()})
        return
    console.print(render_table(comparison))
    console.print(" ".join(sentences(comparison)), highlight=False, markup=False)
    for name in ("report.html", "report.png", "comparison.json"):
        console.print(f"  {folder / name}", highlight=False, markup=False)
