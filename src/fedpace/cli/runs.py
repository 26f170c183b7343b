"""`fedpace compare`, `fedpace run`, `fedpace resume` and `fedpace report`."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedpace.cli.common import AsJson, key_values, print_json
from fedpace.cli.reporting import report_folder
from fedpace.config import Experiment, Overrides, load_experiment
from fedpace.core.errors import InputError, StorageError
from fedpace.progress import RunProgress
from fedpace.records.run import INFO, RunRecord, find_runs
from fedpace.report.numbers import counted
from fedpace.runner import Execution, Plan, check_folder, pending, run_one, run_plan
from fedpace.runner import resume as resume_runs
from fedpace.sim.engines.choice import EngineName, EngineOptions

ExperimentFile = Annotated[
    Path | None,
    typer.Argument(help="Experiment in TOML. Without it: real digits, inside the package.", show_default=False),
]
Out = Annotated[Path | None, typer.Option(help="Folder to write into (default: runs/NAME-TIME).", show_default=False)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the runs that the folder holds.")]
DelayName = Annotated[str | None, typer.Option("--delays", help="Another delay model, with its defaults.")]
Target = Annotated[float | None, typer.Option(help="Stop when this accuracy (or loss) is held.")]
Hold = Annotated[
    int | None,
    typer.Option(
        help="Instants over which the mean must meet the target (default 10); 1 = the first crossing counts.",
        show_default=False,
    ),
]
ChargeWarmup = Annotated[bool, typer.Option("--charge-warmup", help="Let the measuring rounds count on the clock.")]
WarmupWait = Annotated[
    float | None,
    typer.Option(
        help="Share of the clients that a charged warm-up waits for; others are known when they answer (default 1).",
        show_default=False,
    ),
]
ServerStep = Annotated[
    str | None,
    typer.Option(
        "--server",
        help="Server step of all schemes, as NAME or NAME:KEY=VALUE,... (default: what each scheme asks for).",
        show_default=False,
    ),
]
MaxRounds = Annotated[int | None, typer.Option(help="Stop after this many rounds.")]
EvaluateEvery = Annotated[int | None, typer.Option(help="Evaluate the shared model only every so many rounds.")]
CheckpointEvery = Annotated[
    float | None,
    typer.Option(
        help="Seconds between checkpoints; 0 = after every round, inf = none (default: as often as costs little).",
        show_default=False,
    ),
]
KeepModel = Annotated[
    bool | None,
    typer.Option(
        "--keep-model/--drop-model", help="Keep final models (default: those of up to 16 MiB).", show_default=False
    ),
]
Jobs = Annotated[int, typer.Option(help="Runs at a time; 0 = one a core where one run cannot use all cores.")]
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
    delays: Annotated[
        str | None, typer.Option(help="Another delay model with its defaults, or several, separated by commas.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds.")] = None,
    server: ServerStep = None,
    target: Target = None,
    hold: Hold = None,
    max_rounds: MaxRounds = None,
    evaluate_every: EvaluateEvery = None,
    charge_warmup: ChargeWarmup = False,
    warmup_wait: WarmupWait = None,
    jobs: Jobs = 0,
    engine: EngineNamed = "auto",
    workers: Workers = 0,
    ray_address: RayAddress = None,
    checkpoint_every: CheckpointEvery = None,
    keep_model: KeepModel = None,
    out: Out = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Compare schemes: virtual seconds until each brings the shared model to the target."""
    names = _listed(selectors, "--selectors names no scheme")
    models = _listed(delays, "--delays names no delay model")
    if seeds is not None and seeds < 1:
        raise InputError(f"--seeds must be at least 1, but {seeds} came")
    execution = Execution(EngineOptions(engine, workers, ray_address), checkpoint_every, keep_model)
    chosen = [
        load_experiment(
            experiment,
            Overrides(
                names,
                model,
                None if seeds is None else range(seeds),
                target,
                max_rounds,
                charge_warmup,
                warmup_wait,
                evaluate_every,
                hold,
                _server(server),
            ),
        )
        for model in (models or [None])  # type: ignore[list-item]
    ]
    plan = Plan.under(chosen)
    folder = _folder(out, chosen[0], overwrite)
    console = Console(stderr=as_json)
    _announce(console, chosen, folder, quiet=as_json)
    runs = sum(len(job.all) for job in plan.jobs(folder))
    with _resumable(folder), RunProgress(runs, console, quiet=as_json) as progress:
        run_plan(plan, folder, progress.watch, progress.done, execution=execution, jobs=jobs, overwrite=overwrite)
    with _resumable(folder):
        report_folder(folder, console, as_json=as_json)


def run(
    experiment: ExperimentFile = None,
    selector: Annotated[
        str | None, typer.Option(help="Label or name of the scheme (default: the first).", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of data, model, delays and selection.")] = 0,
    delays: DelayName = None,
    server: ServerStep = None,
    target: Target = None,
    hold: Hold = None,
    max_rounds: MaxRounds = None,
    evaluate_every: EvaluateEvery = None,
    charge_warmup: ChargeWarmup = False,
    warmup_wait: WarmupWait = None,
    engine: EngineNamed = "auto",
    workers: Workers = 0,
    ray_address: RayAddress = None,
    checkpoint_every: CheckpointEvery = None,
    keep_model: KeepModel = None,
    out: Out = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Run one scheme once."""
    if seed < 0:
        raise InputError(f"--seed must be at least 0, but {seed} came")
    execution = Execution(EngineOptions(engine, workers, ray_address), checkpoint_every, keep_model)
    names = None if selector is None else [selector]
    overrides = Overrides(
        names, delays, [seed], target, max_rounds, charge_warmup, warmup_wait, evaluate_every, hold, _server(server)
    )
    chosen = load_experiment(experiment, overrides)
    chosen = dataclasses.replace(chosen, schemes=chosen.schemes[:1])
    folder = _folder(out, chosen, overwrite)
    console = Console(stderr=as_json)
    _announce(console, [chosen], folder, quiet=as_json)
    with _resumable(folder), RunProgress(1, console, quiet=as_json) as progress:
        record = run_one(
            chosen, chosen.schemes[0], seed, folder, progress.watch, execution=execution, overwrite=overwrite
        )
    _show_run(record, folder, console, as_json=as_json)


def resume(
    folder: Annotated[Path, typer.Argument(help="Folder of a `fedpace compare` or `fedpace run` that was stopped.")],
    jobs: Jobs = 0,
    engine: EngineNamed = "auto",
    workers: Workers = 0,
    ray_address: RayAddress = None,
    checkpoint_every: CheckpointEvery = None,
    keep_model: KeepModel = None,
    as_json: AsJson = False,
) -> None:
    """Go on where a run or a comparison was stopped, as if it never had been.

    Each unfinished run goes on from its last checkpoint, and runs that had not begun are begun. The records and the
    models are those of an uninterrupted run, byte for byte, however often and at whatever instant it was killed.
    """
    execution = Execution(EngineOptions(engine, workers, ray_address), checkpoint_every, keep_model)
    console = Console(stderr=as_json)
    wanted = [each for job in pending(folder) for each in job.all]
    left = [job for job in wanted if not job.ended]
    if not as_json:
        ended = len(wanted) - len(left)
        state = "all finished already" if not left else f"{ended} finished already, {len(left)} to go"
        console.print(f"{folder}: {counted(len(wanted), 'run')}, {state}", highlight=False, markup=False)
    with _resumable(folder), RunProgress(len(left), console, quiet=as_json) as progress:
        records = resume_runs(folder, progress.watch, progress.done, execution=execution, jobs=jobs)
    if (folder / INFO).exists():
        _show_run(records[0], folder, console, as_json=as_json)
    else:
        report_folder(folder, console, as_json=as_json)


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of `fedpace compare` or `fedpace run`.")],
    as_json: AsJson = False,
) -> None:
    """Build table, page and picture anew from recorded runs, finished or not."""
    find_runs(folder)  # says what is expected where there are none
    report_folder(folder, Console(), as_json=as_json)


@contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    """Say how to go on where runs were stopped."""
    command = f"`fedpace resume {shlex.quote(str(folder))}`"
    try:
        yield
    except StorageError as error:
        raise StorageError(f"{error} with {command}") from error
    except KeyboardInterrupt:
        begun = folder.exists()
        then = f"what was recorded so far is kept; {command} goes on" if begun else "nothing was recorded yet"
        sys.stderr.write(f"interrupted: {then}\n")
        raise typer.Exit(130) from None


def _server(text: str | None) -> dict[str, Any] | None:
    """Read `NAME` or `NAME:KEY=VALUE,...`."""
    if text is None:
        return None
    name, _, options = text.partition(":")
    return {"name": name.strip(), **key_values([entry for entry in options.split(",") if entry], "--server")}


def _listed(text: str | None, nothing: str) -> list[str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError(f"{nothing}: give one or more, separated by commas")
    return names


def _folder(out: Path | None, experiment: Experiment, overwrite: bool) -> Path:
    folder = out or Path("runs") / f"{experiment.name}-{datetime.now():%Y%m%d-%H%M%S}"
    check_folder(folder, overwrite=overwrite)
    return folder


def _announce(console: Console, experiments: list[Experiment], folder: Path, *, quiet: bool) -> None:
    if quiet:
        return
    first = experiments[0]
    names = ", ".join(scheme.label for scheme in first.schemes)
    seeds = counted(len(first.seeds), "seed")
    delays = ", ".join(experiment.delays.name for experiment in experiments)
    console.print(
        f"{first.name}: {first.data.name} with {first.model.name} under {delays} delays; {names}; {seeds}; "
        f"into {folder}",
        highlight=False,
        markup=False,
    )


def _show_run(record: RunRecord, folder: Path, console: Console, *, as_json: bool) -> None:
    last, info = record.rounds[-1], record.info
    metric = record.evaluated[-1].metric
    if as_json:
        print_json(
            {
                "folder": str(folder),
                "label": info.label,
                "seed": info.seed,
                "status": info.status,
                "message": info.message,
                "rounds": last.number,
                "virtual_seconds": last.clock,
                "time_to_target": None if record.reached is None else record.reached.clock,
                "first_crossing": None if record.crossed is None else record.crossed.clock,
                info.metric: metric,
                "target": info.target,
                "engine": info.engine,
            }
        )
        return
    console.print(
        f"{info.label}, seed {info.seed}: {info.status} after {last.number} rounds and {last.clock:,.0f} virtual "
        f"seconds, {info.metric} {metric:.4g}. {info.message}",
        highlight=False,
        markup=False,
    )
    if record.crossed is not None:
        held = "not held" if record.reached is None else f"held from {record.reached.clock:,.0f} s on"
        console.print(f"Target {info.target:g}: first met at {record.crossed.clock:,.0f} s, {held}", highlight=False)
    if info.engine:
        console.print(f"Engine: {info.engine['name']} ({info.engine['why']})", highlight=False, markup=False)
    console.print(f"Recorded in {folder}", highlight=False, markup=False)
