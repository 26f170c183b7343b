"""Arguments and options of `fedpace compare`, `fedpace run`, `fedpace resume` and `fedpace report`.

The implementation is in `commands.py`. It loads the simulator, so it is imported only when a command runs something.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpace._base.errors import InputError
from fedpace._base.registry import split_list
from fedpace.cli.parameters import AsJson, Changes, ExecutionOptions, ExperimentFile, Jobs, Out, Overwrite, grouped


@grouped
def compare(
    *,
    experiment: ExperimentFile = None,
    selectors: Annotated[
        str | None,
        typer.Option(
            "--selectors",
            "--schemes",
            help='Schemes, by label or name, with options: "random(k=5),pace"; only these are run.',
        ),
    ] = None,
    delays: Annotated[
        str | None, typer.Option(help='Another delay model such as "lognormal(median=30)", or several, with commas.')
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds.")] = None,
    changes: Changes,
    jobs: Jobs = 0,
    how: ExecutionOptions,
    out: Out = None,
    overwrite: Overwrite = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Run a few rounds of each scheme, and estimate the duration of the comparison."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare schemes: virtual seconds until each reaches and holds the target."""
    names = _listed(selectors, "--selectors names no scheme")
    models = _listed(delays, "--delays names no delay model")
    if seeds is not None and seeds < 1:
        raise InputError(f"--seeds must be at least 1, but {seeds} came")
    from fedpace.cli import commands

    execution = commands.execution(how)
    overrides = commands.overrides(changes, selectors=names, seeds=None if seeds is None else range(seeds))
    chosen = commands.load_under(experiment, overrides, models)
    if dry_run:
        commands.estimate_duration(chosen, execution, jobs=jobs, as_json=as_json)
        return
    commands.compare(chosen, out, execution, jobs=jobs, overwrite=overwrite, as_json=as_json)


@grouped
def run(
    *,
    experiment: ExperimentFile = None,
    selector: Annotated[
        str | None,
        typer.Option(
            "--selector", "--scheme", help='The scheme, as "random(k=5)" (default: the first).', show_default=False
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of data, model, delays and selection.")] = 0,
    delays: Annotated[str | None, typer.Option(help='Another delay model: nycmesh, "lognormal(median=30)".')] = None,
    changes: Changes,
    how: ExecutionOptions,
    out: Out = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Run one scheme once."""
    if seed < 0:
        raise InputError(f"--seed must be at least 0, but {seed} came")
    from fedpace.cli import commands

    execution = commands.execution(how)
    names = None if selector is None else [selector]
    asked = commands.overrides(changes, selectors=names, delays=delays, seeds=[seed], option="--selector")
    (chosen,) = commands.load_under(experiment, asked)
    commands.run(chosen, seed, out, execution, overwrite=overwrite, as_json=as_json)


@grouped
def resume(
    *,
    folder: Annotated[Path, typer.Argument(help="Folder of an interrupted `fedpace compare` or `fedpace run`.")],
    jobs: Jobs = 0,
    how: ExecutionOptions,
    as_json: AsJson = False,
) -> None:
    """Resume a run or a comparison that was interrupted.

    Unfinished runs continue from their last checkpoint, and missing runs are
    started. Records and models are the same, byte for byte, as those of an
    uninterrupted run.
    """
    from fedpace.cli import commands
    from fedpace.cli.commands import single_comparison

    commands.resume(single_comparison(folder), commands.execution(how), jobs=jobs, as_json=as_json)


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of `fedpace compare` or `fedpace run`.")],
    target: Annotated[
        float | None, typer.Option(help="Report the time to another target; nothing is run.", show_default=False)
    ] = None,
    hold: Annotated[
        int | None,
        typer.Option(help="Number of instants over which the target must be held.", show_default=False),
    ] = None,
    looks: Annotated[
        str | None,
        typer.Option(
            help="When the target may be met: in any round (rounds), or at instants that all schemes share (grid).",
            show_default=False,
        ),
    ] = None,
    at: Annotated[
        float | None,
        typer.Option(help="Add a column with the metric of every scheme at this time, in seconds.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write table, page and picture again from recorded runs, finished or not."""
    from rich.console import Console

    from fedpace.cli.commands import Question, report_folder

    report_folder(folder, Console(), as_json=as_json, question=Question(target, hold, at, looks))


def _listed(text: str | None, nothing: str) -> list[str] | None:
    if text is None:
        return None
    names = split_list(text, nothing.split()[0])
    if not names:
        raise InputError(f"{nothing}: give one or more, separated by commas")
    return names
