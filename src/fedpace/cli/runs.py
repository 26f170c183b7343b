"""`fedpace compare`, `fedpace run`, `fedpace resume` and `fedpace report`: what they take.

What they do is in `running.py`, which loads torch: it is imported when a command has something to run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpace.cli.options import (
    AsJson,
    ChargeWarmup,
    CheckpointEvery,
    DelayName,
    EngineNamed,
    EvaluateEvery,
    ExperimentFile,
    Hold,
    Jobs,
    KeepModel,
    MaxRounds,
    Out,
    Overwrite,
    RayAddress,
    ServerStep,
    Target,
    WarmupWait,
    Workers,
)
from fedpace.core.errors import InputError
from fedpace.core.naming import split_list


def compare(
    experiment: ExperimentFile = None,
    selectors: Annotated[
        str | None,
        typer.Option(help='Schemes, by label or name, with options: "random(k=5),pace"; others are left out.'),
    ] = None,
    delays: Annotated[
        str | None, typer.Option(help='Another delay model, or several: "nycmesh,lognormal(median=30)".')
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
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Play a few rounds of each scheme, and say what all of it would take.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare schemes: virtual seconds until each brings the shared model to the target."""
    names = _listed(selectors, "--selectors names no scheme")
    models = _listed(delays, "--delays names no delay model")
    if seeds is not None and seeds < 1:
        raise InputError(f"--seeds must be at least 1, but {seeds} came")
    from fedpace.cli import running

    execution = running.execution(engine, workers, ray_address, checkpoint_every, keep_model)
    overrides = running.Overrides(
        names,
        None,
        None if seeds is None else range(seeds),
        target,
        max_rounds,
        charge_warmup,
        warmup_wait,
        evaluate_every,
        hold,
        running.server(server),
    )
    chosen = running.load_under(experiment, overrides, models)
    if dry_run:
        running.foretell(chosen, execution, jobs=jobs, as_json=as_json)
        return
    running.compare(chosen, out, execution, jobs=jobs, overwrite=overwrite, as_json=as_json)


def run(
    experiment: ExperimentFile = None,
    selector: Annotated[
        str | None,
        typer.Option(help='The scheme, as "random(k=5)" (default: the first).', show_default=False),
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
    from fedpace.cli import running

    execution = running.execution(engine, workers, ray_address, checkpoint_every, keep_model)
    overrides = running.Overrides(
        None if selector is None else [selector],
        delays,
        [seed],
        target,
        max_rounds,
        charge_warmup,
        warmup_wait,
        evaluate_every,
        hold,
        running.server(server),
    )
    (chosen,) = running.load_under(experiment, overrides)
    running.run(chosen, seed, out, execution, overwrite=overwrite, as_json=as_json)


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
    from fedpace.cli import running

    execution = running.execution(engine, workers, ray_address, checkpoint_every, keep_model)
    running.resume(folder, execution, jobs=jobs, as_json=as_json)


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of `fedpace compare` or `fedpace run`.")],
    as_json: AsJson = False,
) -> None:
    """Build table, page and picture anew from recorded runs, finished or not."""
    from rich.console import Console

    from fedpace.cli.reporting import report_folder

    report_folder(folder, Console(), as_json=as_json)


def _listed(text: str | None, nothing: str) -> list[str] | None:
    if text is None:
        return None
    names = split_list(text, nothing.split()[0])
    if not names:
        raise InputError(f"{nothing}: give one or more, separated by commas")
    return names
