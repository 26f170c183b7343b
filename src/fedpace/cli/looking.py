"""Commands about recorded runs and running servers: `runs`, `explain`, `watch`, `export` and `readmit`."""

from __future__ import annotations

import dataclasses
import shlex
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich import box
from rich.console import Console
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fedpace._base.checks import printable
from fedpace._base.errors import InputError
from fedpace.cli.parameters import AsJson, print_json

if TYPE_CHECKING:
    from fedpace.records.catalogue import RunState
    from fedpace.records.run import RunRecord

Runs = Annotated[Path, typer.Argument(help="Folder of runs, or of one run.", metavar="DIR")]
Label = Annotated[
    str | None, typer.Option("--selector", "--scheme", help="Only this scheme, by its label.", show_default=False)
]
Seed = Annotated[int | None, typer.Option(help="Only this seed.", show_default=False)]
SHOWN = 40
"""Rounds that `explain` prints unless it is told to print all."""
NARROW = 75
"""Columns of a window that `watch` needs for all that it has to say."""


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder to look in.", metavar="[DIR]")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List the comparisons and runs below a folder, with their state and the fastest scheme."""
    from fedpace.records.catalogue import comparisons

    found = comparisons(folder)
    if as_json:
        print_json({"folder": str(folder), "comparisons": [dataclasses.asdict(each) for each in found]})
        return
    console = Console(highlight=False, markup=False)
    for each in found:
        console.print(each.folder, style="bold", soft_wrap=True)
        if not each.planned:
            console.print(Padding(each.state, (0, 0, 0, 4)))
            continue
        begun = each.begun.replace("T", " ")[:16]
        seeds = f"{len(each.seeds)} seed{'' if len(each.seeds) == 1 else 's'}"
        facts = [
            f"{each.experiment}: {', '.join(each.schemes)}",
            f"{each.ended} of {each.planned} runs with {seeds}, {each.state}; begun {begun}",
            "" if each.ended == each.planned else f"to resume: fedpace resume {shlex.quote(each.folder)}",
            f"fastest: {each.best}" if each.best else "",
        ]
        for fact in filter(None, facts):
            console.print(Padding(fact, (0, 0, 0, 4)))
    console.print("`fedpace report DIR` shows one of them.")


def explain(
    folder: Runs,
    client: Annotated[str, typer.Option(help="The client: its name in the data or at the server, or its number.")],
    selector: Label = None,
    seed: Seed = None,
    all_rounds: Annotated[bool, typer.Option("--all", help=f"Print all rounds (default: the last {SHOWN}).")] = False,
    as_json: AsJson = False,
) -> None:
    """Explain why a client was or was not selected: a summary per run, round by round for a single run."""
    from fedpace.report.explain import explain_client

    chosen = _chosen(folder, selector, seed)
    found = [explain_client(record, client) for record in chosen]
    if as_json:
        print_json({"folder": str(folder), "client": client, "runs": [dataclasses.asdict(each) for each in found]})
        return
    console = Console(highlight=False, markup=False)
    for each in found:
        console.print(" ".join(each.sentences()))
        for reason, count in each.reasons:
            line = f"- {count} of {each.rounds} {'rounds' if each.in_rounds else 'steps'}, {printable(reason)}"
            console.print(textwrap.fill(line, console.width - 1, subsequent_indent="  ", break_on_hyphens=False))
        console.print()
    if len(found) > 1:
        console.print("Round by round: name one run with --selector and --seed.")
        return
    (one,) = found
    table = _table("Round", "Clock", "Part", "Weight", "Why")
    turns = one.turns if all_rounds else one.turns[-SHOWN:]
    for turn in turns:
        weight = "" if turn.weight is None else f"{turn.weight:.1%}"
        table.add_row(str(turn.round), f"{turn.clock:,.0f} s", turn.part, weight, printable(turn.reason))
    console.print(table)
    if len(turns) < len(one.turns):
        console.print(f"The last {len(turns)} of {len(one.turns)} rounds; --all prints the others.")


def watch(
    folder: Runs,
    every: Annotated[float, typer.Option(help="Seconds between updates.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print the state once and exit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Follow running runs of the simulator, or a Flower or NVFlare server (give its state folder).

    A line below the table says where the influence of clients was bounded: how
    many updates were clipped or left out, how many weights capped, and which
    clients are excluded.
    """
    if not every > 0:
        raise InputError(f"--every must be above 0 seconds, but {every} came")
    if not folder.is_dir():
        raise InputError(f"expected the folder of a run or of a server to watch, but there is no folder {folder}")
    from fedpace.records.catalogue import RunWatch

    watching = RunWatch(folder)
    if once or as_json:
        states = watching.look()
        if as_json:
            print_json({"folder": str(folder), "runs": [_plain(state) for state in states]})
            return
        Console().print(_state_table(states, folder, Console().width))
        return
    console = Console()
    with Live(_state_table(watching.look(), folder, console.width), console=console, auto_refresh=False) as live:
        while True:
            states = watching.look()
            live.update(_state_table(states, folder, console.width), refresh=True)
            if states and all(state.info.ended for state in states):
                return
            time.sleep(every)


def export(
    folder: Runs,
    to: Annotated[Literal["csv", "parquet", "latex", "tensorboard"], typer.Option(help="What to write.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder to write into (default: DIR-export).", show_default=False)
    ] = None,
    selector: Label = None,
    seed: Seed = None,
    as_json: AsJson = False,
) -> None:
    """Export recorded runs: tables of rounds and cohorts, a LaTeX table, or curves for TensorBoard."""
    from fedpace.report.export import export_runs

    chosen = _chosen(folder, selector, seed)
    written = export_runs(chosen, out or folder.resolve().with_name(f"{folder.resolve().name}-export"), to)
    if as_json:
        print_json({"files": [str(path) for path in written]})
        return
    console = Console(highlight=False, markup=False)
    for path in written:
        console.print(f"  {path}", soft_wrap=True)
    if to == "tensorboard":
        console.print("`tensorboard --logdir FOLDER` shows them; its wall time is the virtual clock.")


def _chosen(folder: Path, selector: str | None, seed: int | None) -> list[RunRecord]:
    from fedpace.records.run import find_runs

    found = find_runs(folder)
    chosen = [
        record
        for record in found
        if selector in (None, record.info.label, record.info.selector) and seed in (None, record.info.seed)
    ]
    if not chosen:
        labels = ", ".join(dict.fromkeys(record.info.label for record in found))
        seeds = ", ".join(str(seed) for seed in sorted({record.info.seed for record in found}))
        raise InputError(f"no run in {folder} fits: its schemes are {labels}, its seeds {seeds}")
    return chosen


def _state_table(states: list[RunState], folder: Path, width: int) -> Table:
    """Return a row per run; a narrow window has no room for what has ended, and for how many clients took part."""
    metrics = dict.fromkeys(state.info.metric for state in states)
    targets = dict.fromkeys(f"{state.info.target:g}" for state in states if state.info.target is not None)
    heading = "/".join(metrics).capitalize() or "Metric"
    going_on = any(not state.info.ended for state in states)
    cells: dict[str, list[str]] = {name: [] for name in ("Run", "State", "Round", "Clock", heading, "Clients", "Last")}
    for state in states:
        info, last = state.info, state.last
        failed = f", {len(set(last.failed))} failed" if last is not None and last.failed else ""
        cells["Run"].append(_called(state, folder))
        cells["State"].append(info.status)
        cells["Round"].append("" if last is None else str(last.number))
        cells["Clock"].append("" if last is None else f"{last.clock:,.0f} s")
        cells[heading].append("" if state.metric is None else f"{state.metric:.4g}")
        cells["Clients"].append("" if last is None else f"{len(set(last.clients))}{failed}")
        cells["Last"].append("" if info.ended else f"{state.quiet:,.0f} s ago")
    if not states:
        cells = {name: ["nothing is recorded yet" if name == "Run" else ""] for name in cells}
    if not going_on:
        del cells["Last"]
    if width < NARROW:
        del cells["Clients"]
    bounded = [(_called(state, folder), state.influence.line(state.info.names)) for state in states if state.influence]
    below = "\n".join(line if len(states) == 1 else f"{run}: {line}" for run, line in bounded)
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1), collapse_padding=True,
        caption=Text(below) if below else None, caption_justify="left", caption_style="",
    )  # fmt: skip
    for name, values in cells.items():
        aim = f"\n(target {', '.join(targets)})" if name == heading and targets else ""
        wide = max(map(len, values))
        table.add_column(
            name + aim, overflow="fold", justify="left" if name in ("Run", "State") else "right",
            min_width=None if name == "Run" else wide, style="dim" if name == "Last" else "",
        )  # fmt: skip
    for row in zip(*cells.values(), strict=True):
        table.add_row(*row)
    return table


def _called(state: RunState, folder: Path) -> str:
    return str(state.folder.relative_to(folder)) if state.folder != folder else state.info.label


def _plain(state: RunState) -> dict[str, object]:
    last = state.last
    return {
        "folder": str(state.folder),
        "label": state.info.label,
        "seed": state.info.seed,
        "status": state.info.status,
        "round": None if last is None else last.number,
        "clock": None if last is None else last.clock,
        "clients": [] if last is None else [str(client) for client in last.clients],
        state.info.metric: state.metric,
        "target": state.info.target,
        "quiet_seconds": state.quiet,
        "clipped": state.influence.total("clipped"),
        "capped": state.influence.total("capped"),
        "left_out": state.influence.total("left_out"),
        "excluded": list(state.influence.excluded),
    }


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in headings:
        table.add_column(
            heading, overflow="fold", justify="right" if heading in ("Round", "Clock", "Weight") else "left"
        )
    return table


def readmit(
    folder: Annotated[
        Path, typer.Argument(help="State folder of a Flower or NVFlare server, running or stopped.", metavar="FOLDER")
    ],
    clients: Annotated[
        list[str] | None,
        typer.Argument(
            help="Clients, by name; none = all that are excluded.", metavar="[CLIENT]...", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Let excluded clients train again.

    A robust rule with a validation set excludes clients for a while if it
    refuses their updates. This takes that back, and the evidence for it.
    A running server acts at its next step, a stopped one when it starts; its
    log says what it did. `fedpace watch FOLDER` shows which clients are
    excluded.
    """
    from fedpace.hosting.state_folder import request_readmission
    from fedpace.records.influence import Influence
    from fedpace.records.run import INFO, read_run

    wanted = list(dict.fromkeys(clients or []))
    path = request_readmission(folder, wanted)
    rounds = read_run(folder).rounds if (folder / INFO).is_file() else ()
    excluded = list(Influence(rounds).excluded)
    if as_json:
        print_json({"folder": str(folder), "clients": wanted or None, "excluded": excluded, "request": str(path)})
        return
    console = Console(highlight=False, markup=False)
    whom = ", ".join(wanted) or "all excluded clients"
    console.print(f"Requested from the server of {folder}: readmit {whom}.", soft_wrap=True)
    console.print("A running server acts at its next step, a stopped one when it starts; its log says what it did.")
    if rounds:
        last = f"after round {rounds[-1].number}"
        said = f"Excluded {last}: {', '.join(excluded)}." if excluded else f"Nobody was excluded {last}."
        console.print(said, soft_wrap=True)
        if others := [name for name in wanted if name not in excluded]:
            console.print(f"Not excluded then: {', '.join(others)}.", soft_wrap=True)
