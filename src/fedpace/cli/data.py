"""`fedpace data get` fetches a public data set; `fedpace data show` shows any data set as its clients hold it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from fedpace import registry
from fedpace._base.errors import InputError
from fedpace.cli.common import print_json
from fedpace.cli.options import AsJson
from fedpace.core.naming import key_values
from fedpace.data import hub

if TYPE_CHECKING:
    from fedpace.data.summary import DataSummary

app = typer.Typer(help="Fetch data sets and look at them.", no_args_is_help=True)

Folder = Annotated[
    str,
    typer.Option("--data", help="Folder of parquet files (default: $FEDPACE_DATA, else the Hub).", show_default=False),
]


@app.callback()
def _group() -> None:
    """Fetch data sets and look at them."""


@app.command()
def get(
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


@app.command()
def show(
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
    from fedpace.data.summary import summarise

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
        from fedpace.report.partition import write_partition_png

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
    console.print(_numbers(f"{name}, seed {seed}", summary))
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


def _numbers(title: str, summary: DataSummary) -> Table:
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, show_header=False, show_edge=False, pad_edge=False
    )
    table.add_column()
    table.add_column(justify="right")
    for row in summary.rows():
        table.add_row(*row)
    return table
