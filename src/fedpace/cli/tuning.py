"""`fedpace tune`: it searches the options of a scheme for the least time to the target."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpace._base.errors import InputError
from fedpace.cli.options import AsJson, ExperimentFile, print_json

if TYPE_CHECKING:
    from fedpace.study.tuning import Tuned


def tune(
    experiment: ExperimentFile = None,
    scheme: Annotated[str, typer.Option("--scheme", "--selector", help="The scheme whose options are searched.")] = "",
    search: Annotated[
        str | None,
        typer.Option(
            help='What to search: "buffer=2:40,variant=md|uniform" (default: all options with declared ranges).',
            show_default=False,
        ),
    ] = None,
    trials: Annotated[int, typer.Option(help="Settings to try, the defaults included.")] = 20,
    seeds: Annotated[int, typer.Option(help="Seeds of each trial: 100, 101, ...; comparisons use 0, 1, ...")] = 3,
    target: Annotated[float | None, typer.Option(help="Accuracy (or loss) to hold.", show_default=False)] = None,
    delays: Annotated[str | None, typer.Option(help="Another delay model.", show_default=False)] = None,
    out: Annotated[Path, typer.Option(help="Folder of searches; the same call again continues.")] = Path("runs/tune"),
    as_json: AsJson = False,
) -> None:
    """Search the options of a scheme for the least time to the target (needs optuna).

    The first trial has the defaults. The best of many trials is partly luck, so compare it with the defaults on other
    seeds: the command is printed.
    """
    if not scheme:
        raise InputError("--scheme names the scheme to tune, such as --scheme fedbuff")
    if seeds < 1:
        raise InputError(f"--seeds must be at least 1, but {seeds} came")
    from fedpace._base import registry
    from fedpace.config import Overrides, load_experiment
    from fedpace.sim.engines.threads import limit_to_one_thread
    from fedpace.study.tuning import SEEDS, Trial, parse_space
    from fedpace.study.tuning import tune as search_options

    limit_to_one_thread()
    overrides = Overrides(target=target, delays=delays, selectors=[scheme], option="--scheme")
    chosen = load_experiment(experiment, overrides)

    def told(trial: Trial) -> None:
        if not as_json:
            options = ", ".join(f"{name}={_short(value)}" for name, value in trial.options.items())
            missed = f", target missed under {trial.missed} of {seeds} seeds" if trial.missed else ""
            typer.echo(f"trial {trial.number}: {trial.seconds:,.4g} s{missed}; {options}")

    found = search_options(
        chosen,
        scheme,
        None if search is None else parse_space(search, registry.selectors[scheme]),
        folder=out,
        trials=trials,
        seeds=range(SEEDS[0], SEEDS[0] + seeds),
        watch=told,
    )
    if as_json:
        more = {"best": dataclasses.asdict(found.best), "selector": found.text, "folder": str(found.folder)}
        print_json(dataclasses.asdict(found) | more)
        return
    typer.echo(_verdict(found, seeds))
    typer.echo(f"the runs are in {found.folder}")
    if not found.options or found.best.missed == seeds:
        return
    schemes = found.text if found.default is None else f"{found.text},{scheme}"
    words = ["fedpace", "compare", *([str(experiment)] if experiment else []), "--selectors", schemes]
    words += [] if target is None else ["--target", str(target)]
    words += [] if delays is None else ["--delays", delays]
    typer.echo(f"now on other seeds: {shlex.join([*words, '--seeds', '5'])}")


def _verdict(found: Tuned, seeds: int) -> str:
    """Return the line that says what is best, and how much better than the defaults, if that can be said."""
    best, default, tried = found.best, found.default, len(found.trials)
    if all(trial.missed == seeds for trial in found.trials):
        return f"none of {tried} settings reached the target: take an easier target, or more rounds (max_rounds)"
    if not found.options:
        also = f"; they missed the target under {best.missed} of {seeds} seeds" if best.missed else ""
        return f"the defaults are the best of {tried}: {found.text}, {best.seconds:,.4g} s on these seeds{also}"
    line = f"best of {tried}: {found.text}, "
    if best.missed:
        return f"{line}which missed the target under {best.missed} of {seeds} seeds"
    if default is None:
        return f"{line}{best.seconds:,.4g} s on these seeds; the defaults cannot be run in this experiment"
    if default.missed == seeds:
        return f"{line}{best.seconds:,.4g} s on these seeds; the defaults never reached the target"
    if default.missed:
        missed = f"the defaults missed the target under {default.missed} of {seeds} seeds"
        return f"{line}{best.seconds:,.4g} s on these seeds; {missed}"
    return f"{line}{default.seconds / best.seconds:.3g} times as fast as the defaults on these seeds"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
