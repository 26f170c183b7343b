"""`fedpace delays show`: a delay model as numbers and as a picture, before anything is trained on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from fedpace import registry
from fedpace._base.errors import InputError
from fedpace.cli.common import print_json
from fedpace.cli.options import AsJson
from fedpace.core.naming import key_values

if TYPE_CHECKING:
    from fedpace.delays.summary import DelaySummary

app = typer.Typer(help="Look at delay models.", no_args_is_help=True)

BAR = 46
"""Characters of the longest bar."""


@app.callback()
def _group() -> None:
    """Look at delay models."""


@app.command()
def show(
    model: Annotated[str, typer.Argument(help="Name of a delay model; `fedpace list delays` shows them.")],
    clients: Annotated[int, typer.Option(help="Clients in a fleet.")] = 100,
    fleets: Annotated[int, typer.Option(help="Fleets to draw, one per seed.")] = 20,
    rounds: Annotated[int, typer.Option(help="Rounds to draw of each.")] = 20,
    model_bytes: Annotated[int, typer.Option(help="Size of the model that travels.")] = 1_600_000,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="KEY=VALUE of the model, VALUE as in TOML; repeatable.")
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Draw the histogram into this file.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Show quantiles and a histogram of the seconds that clients take."""
    if clients < 1 or fleets < 1:
        raise InputError(f"--clients and --fleets must be at least 1, but {clients} and {fleets} came")
    from fedpace.config import build
    from fedpace.delays.summary import summarise

    config = build(registry.delays[model], key_values(option or []), f"delays show {model}")
    drawn = (config.build(clients, model_bytes=model_bytes, seed=seed) for seed in range(fleets))
    summary = summarise(*drawn, rounds=rounds)
    if png is not None:
        from fedpace.report.delays import write_delays_png

        write_delays_png(summary, png, title=f"{model} delays")
    if as_json:
        print_json(
            {
                "model": model,
                "clients": clients,
                "fleets": fleets,
                "rounds": rounds,
                "seconds": dict(summary.rows()),
                "histogram": {"edges": summary.edges.tolist(), "counts": summary.counts.tolist()},
            }
        )
        return
    console = Console()
    console.print(_numbers(model, summary))
    console.print(_histogram(summary))
    if png is not None:
        console.print(f"  {png}", highlight=False, markup=False)


def _numbers(model: str, summary: DelaySummary) -> Table:
    table = Table(
        title=f"{model}: {summary.fleets} fleets of {summary.clients} clients, {summary.rounds} rounds each",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("")
    table.add_column("seconds", justify="right")
    for name, value in summary.rows():
        table.add_row(name, f"{value:.1%}" if name.startswith("share") else f"{value:,.1f}")
    return table


def _histogram(summary: DelaySummary) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right")
    table.add_column()
    table.add_column(justify="right")
    most, total = max(int(summary.counts.max()), 1), int(summary.counts.sum())
    for low, high, count in zip(summary.edges[:-1], summary.edges[1:], summary.counts, strict=True):
        bar = "█" * round(BAR * int(count) / most)
        table.add_row(f"{low:,.0f} to {high:,.0f} s", bar, f"{count / total:.1%}")
    return table
