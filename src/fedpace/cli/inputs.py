"""Commands that show what an experiment is made of: `data get`, `data show` and `delays show`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from fedpace._base import registry
from fedpace._base.errors import InputError
from fedpace._base.registry import key_values
from fedpace.cli.options import AsJson, print_json
from fedpace.data import hub

if TYPE_CHECKING:
    from fedpace.data.federated import DataSummary
    from fedpace.delays.base import DelaySummary

data_app = typer.Typer(help="Fetch data sets and look at them.", no_args_is_help=True)

Folder = Annotated[
    str,
    typer.Option("--data", help="Folder of parquet files (default: $FEDPACE_DATA, else the Hub).", show_default=False),
]


@data_app.callback()
def _data_group() -> None:
    """Fetch data sets and look at them."""


@data_app.command("get")
def get_data(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(hub.SOURCES)}.")],
    data: Folder = "",
    as_json: AsJson = False,
) -> None:
    """Fetch a public data set, decode it into the cache, and say what there is."""
    if name not in hub.SOURCES:
        _refuse(name)
    decoded = hub.load(name, data)
    splits = {
        split: {"rows": len(rows), "complete": decoded.source.rows[split]} for split, rows in decoded.splits.items()
    }
    if as_json:
        print_json(
            {
                "name": name,
                "repository": decoded.source.repository,
                "origin": decoded.origin,
                "cache": str(decoded.cache),
                "splits": splits,
                "classes": decoded.source.classes,
                "input_shape": decoded.source.shape,
                "owners": len(decoded.owner_names),
            }
        )
        return
    console = Console()
    table = Table(
        title=f"{name} ({decoded.source.repository})", title_justify="left", box=box.SIMPLE_HEAD, show_edge=False
    )
    table.add_column("split")
    table.add_column("rows", justify="right")
    table.add_column("")
    for split, counts in splits.items():
        table.add_row(split, f"{counts['rows']:,}", _completeness(counts["rows"], counts["complete"]))
    console.print(table)
    if decoded.source.owner:
        console.print(f"  {len(decoded.owner_names):,} owners ({decoded.source.owner})", highlight=False)
    console.print(f"  from   {decoded.origin}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"  cache  {decoded.cache}", highlight=False, markup=False, soft_wrap=True)


@data_app.command("show")
def show_data(
    name: Annotated[str, typer.Argument(help="Name of a data set; `fedpace list datasets` shows them.")],
    seed: Annotated[int, typer.Option(help="Of the partition.")] = 0,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", help="KEY=VALUE of the set, VALUE as in TOML, lists with commas; repeatable."),
    ] = None,
    data: Folder = "",
    png: Annotated[Path | None, typer.Option(help="Draw clients x classes into this file.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Show what the clients of a data set hold, as numbers and as a picture."""
    from fedpace.config import build
    from fedpace.data.federated import summarise

    cls = registry.datasets[name]
    options = _lists(cls, key_values(option or []))
    if data:
        if "folder" not in {field.name for field in dataclasses.fields(cls)}:
            raise InputError(f"--data is for data sets of parquet files, but {name} has none: leave it out")
        options["folder"] = data
    config = build(cls, options, f"data show {name}")
    federated = config.build(seed=seed)
    summary = summarise(federated)
    histograms = federated.label_histograms()
    if png is not None:
        if histograms is None:
            raise InputError(f"--png draws clients x classes, but {name} is regression and has no classes")
        from fedpace.report.picture import write_partition_png

        write_partition_png(histograms, png, title=f"{name}, seed {seed}: what each client holds")
    if as_json:
        print_json(
            {
                "name": name,
                "seed": seed,
                "options": dataclasses.asdict(config),
                **dataclasses.asdict(summary),
                "samples": [len(samples) for samples in federated.train],
                "test_samples": federated.test_sizes,
                "histograms": None if histograms is None else histograms.astype(int).tolist(),
            }
        )
        return
    console = Console()
    console.print(_data_numbers(f"{name}, seed {seed}", summary))
    if png is not None:
        console.print(f"  {png}", highlight=False, markup=False)


def _refuse(name: str) -> None:
    if name in registry.datasets.names():
        raise InputError(f"there is nothing to fetch for {name!r}: it is made or stored inside the package")
    raise InputError(f"there is no data set {name!r} to fetch. Known: {', '.join(hub.SOURCES)}")


def _lists(cls: type[Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return options in which `features=age,visits` is a list: a shell takes the quotes of TOML's away."""
    several = {field.name for field in dataclasses.fields(cls) if str(field.type) == "tuple[str, ...]"}
    return {
        key: [part.strip() for part in value.split(",")] if key in several and isinstance(value, str) else value
        for key, value in options.items()
    }


def _completeness(rows: int, complete: int) -> str:
    return "complete" if rows == complete else f"a part: the Hub's has {complete:,}"


def _data_numbers(title: str, summary: DataSummary) -> Table:
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, show_header=False, show_edge=False, pad_edge=False
    )
    table.add_column()
    table.add_column(justify="right")
    for row in summary.rows():
        table.add_row(*row)
    return table


delays_app = typer.Typer(help="Look at delay models.", no_args_is_help=True)

BAR = 46
"""Characters of the longest bar."""


@delays_app.callback()
def _delays_group() -> None:
    """Look at delay models."""


@delays_app.command("show")
def show_delays(
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
    from fedpace.delays.base import summarise as summarise_delays

    config = build(registry.delays[model], key_values(option or []), f"delays show {model}")
    drawn = (config.build(clients, model_bytes=model_bytes, seed=seed) for seed in range(fleets))
    summary = summarise_delays(*drawn, rounds=rounds)
    if png is not None:
        from fedpace.report.picture import write_delays_png

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
    console.print(_delay_numbers(model, summary))
    console.print(_histogram(summary))
    if png is not None:
        console.print(f"  {png}", highlight=False, markup=False)


def _delay_numbers(model: str, summary: DelaySummary) -> Table:
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
