"""`fedpace reproduce`: it runs the paper's tables and figures again and compares them with the printed numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedpace._base.errors import InputError
from fedpace._base.registry import split_list
from fedpace.cli.options import AsJson, described

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
