"""`fedpace tune` searches the options of a scheme; `fedpace reproduce` runs the paper's tables and figures again."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedpace._base.errors import InputError
from fedpace._base.registry import split_list
from fedpace.cli.parameters import AsJson, ExperimentFile, described, print_json

if TYPE_CHECKING:
    from fedpace.study.tuning import Tuned


WHAT = ("table1", "table2", "table3", "motivation", "constants", "overhead", "figures", "headline", "all")


def reproduce(
    what: Annotated[
        list[str],
        typer.Argument(
            help="table1 and table2 (nine data sets under synthetic and NYCMesh delays), table3 (sweeps), motivation "
            "(figure 2), constants (what the paper does not state), overhead, figures, headline, or all."
        ),
    ],
    profile: Annotated[
        Literal["quick", "paper", "tiny"],
        typer.Option(help="quick: reduced data, fleets and networks. paper: full scale. tiny: a trial of the command."),
    ] = "quick",
    only: Annotated[str | None, described("Data sets, such as quadratic,rotated-mnist (default: all nine).")] = None,
    selectors: Annotated[
        str | None, described('Columns of tables 1 and 2, others too: "random,pace,oort(k=5)" (default: ours).')
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds.")] = 3,
    out: Annotated[Path, typer.Option(help="Folder of the runs; what is there already is not run again.")] = Path(
        "runs/reproduce"
    ),
    show: Annotated[
        bool, typer.Option("--show", help="Run nothing: show what is in the folder, or what comes with fedpace.")
    ] = False,
    missing: Annotated[
        bool, typer.Option("--missing", help="Run only what did not come with fedpace, and show both together.")
    ] = False,
    tune: Annotated[
        bool, typer.Option("--tune", help="Choose step sizes, targets and options of quick anew, into the folder.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run the paper's tables and figures, and print ours beside the paper's.

    A second call goes on where the first was stopped, and tables share runs.
    Tables in Markdown, LaTeX and CSV, pictures and a page are written into the
    folder.
    """
    for name in what:
        if name not in WHAT:
            raise InputError(f"there is no {name!r} to reproduce: known are {', '.join(WHAT)}")
    if seeds < 1:
        raise InputError(f"--seeds must be at least 1, but {seeds} came")
    from fedpace.reproduce.command import Command

    Command(
        what=tuple(what),
        profile=profile,
        only=_listed(only, "--only"),
        selectors=_listed(selectors, "--selectors") or None,
        seeds=tuple(range(seeds)),
        out=out,
        show=show,
        missing=missing,
        tune=tune,
        as_json=as_json,
    ).run()


def _listed(text: str | None, option: str) -> tuple[str, ...]:
    if text is None:
        return ()
    names = split_list(text, option)
    if not names:
        raise InputError(f"{option} names nothing: give one or more, separated by commas")
    return tuple(names)


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

    The first trial has the defaults. The best of many trials is partly luck, so
    compare it with the defaults on other seeds: the command is printed.
    """
    if not scheme:
        raise InputError("--scheme names the scheme to tune, such as --scheme fedbuff")
    if seeds < 1:
        raise InputError(f"--seeds must be at least 1, but {seeds} came")
    from fedpace._base import registry
    from fedpace.config import Overrides, load_experiment
    from fedpace.sim.engines.engine import limit_to_one_thread
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
