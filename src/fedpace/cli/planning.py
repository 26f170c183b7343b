"""`fedpace plan`: it chooses the clients to wait for from delays and moments, before any training."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from fedpace._base.checks import FloatArray, did_you_mean
from fedpace._base.errors import InputError
from fedpace._base.files import read_npz
from fedpace._base.names import bare, printable
from fedpace.cli.options import AsJson, print_json

if TYPE_CHECKING:
    from fedpace.delays.tables import TableFile

LISTED = 20
"""Clients of the cohort that the terminal shows."""
DELAYS = {"seconds", "second", "secs", "sec", "delay", "delays", "latency", "duration", "elapsed", "time", "ms"}
"""Words in the name of a column that holds delays: such a table has no column per client."""
CLIENTS = {"client", "clients", "device", "node", "user", "phone", "worker", "site", "name", "id", "uuid"}
"""Words in the name of a column that says whose a row is."""
WORD = re.compile("[a-z]+")
NUMBER = re.compile(r"-?\d+(\.\d*)?(e[+-]?\d+)?", re.IGNORECASE)


def plan(
    delays: Annotated[
        Path,
        typer.Option(
            help="CSV or parquet with a column seconds, and client where rows have names (--seconds and --client name "
            "others); or a row per round and a column per client.",
        ),
    ],
    moments: Annotated[
        Path | None,
        typer.Option(
            help="npz with `moments` (clients, d, d) or `factors` (clients, rows, d), and `clients` where they have "
            "names. Without it, all clients are assumed to hold the same kind of data.",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[
        str, typer.Option(help="The column of the delays that says how long a client took.", metavar="COLUMN")
    ] = "seconds",
    client: Annotated[str, typer.Option(help="The column that names the client.", metavar="COLUMN")] = "client",
    noise: Annotated[
        float | None,
        typer.Option(
            help="Relative squared error of one client's update that only averaging lowers "
            "(default: 1 without moments, 0 with them).",
            show_default=False,
        ),
    ] = None,
    ridge: Annotated[float, typer.Option(help="Added to the mean moment before it is inverted.")] = 0.1,
    max_clients: Annotated[int, typer.Option(help="Most clients in a cohort; 0 = no limit.")] = 0,
    png: Annotated[Path | None, typer.Option(help="Draw the trade-off into this file.", show_default=False)] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page into this file.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Plan a cohort: the clients to wait for, their weights, the alternatives, and the cost of one more slow client."""
    from fedpace.planning import plan_cohort
    from fedpace.report.numbers import counted
    from fedpace.report.plan_report import cells, shown, write_plan_page, write_plan_png

    names, taken = _delays(delays, seconds, client)
    known = None if moments is None else _moments(moments, names)
    found = plan_cohort(taken, known, names=names, noise=noise, ridge=ridge, max_clients=max_clients)
    if png is not None:
        write_plan_png(found, png)
    if html is not None:
        write_plan_page(found, html)
    if as_json:
        print_json(dataclasses.asdict(found))
        return
    console = Console(highlight=False, markup=False)
    if taken.ndim == 2:
        some = _listed(names[:3]) + (", ..." if len(names) > 3 else "")
        console.print(
            f"{delays}: {counted(len(taken), 'round')} of {counted(len(names), 'client')}, a column each: {some}\n"
        )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("", "Fastest", "With a weight", "Seconds per round", "Error", "Cost"):
        table.add_column(heading, justify="right")
    for point in shown(found):
        mark = "->" if point == found.chosen else "all" if point == found.everyone else ""
        table.add_row(mark, *cells(point), style="bold" if mark == "->" else "")
    console.print(table)
    console.print("Cost: seconds per round / (1 - error), in proportion to the time to a target.\n")
    console.print(" ".join(found.sentences()))
    cohort = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("Client", "Seconds", "Weight"):
        cohort.add_column(heading, justify="left" if heading == "Client" else "right")
    for name, its_seconds, weight in list(zip(found.clients, found.seconds, found.weights, strict=True))[:LISTED]:
        cohort.add_row(bare(name), f"{its_seconds:,.4g}", f"{weight:.2%}")
    console.print(cohort)
    if len(found.clients) > LISTED:
        console.print(f"and {len(found.clients) - LISTED:,} more; --json has all")
    for path in filter(None, (png, html)):
        console.print(f"  {path}")


def _delays(path: Path, column: str, client: str) -> tuple[list[str], FloatArray]:
    """Return the clients in the order in which they first appear, with their seconds: one each, or a row per round."""
    from fedpace.delays.tables import read_table

    table = read_table(str(path))
    _check_header(path, table)
    for name, option in ((column, "seconds"), (client, "client")):
        if name not in table and name != option:
            known = list(table.columns)
            raise InputError(
                f"--{option}: {path} has no column {name!r}.{did_you_mean(name, known)} It has {_listed(known)}"
            )
    if column not in table:
        return _by_rounds(path, table, client)
    seconds = table.numbers(column, low=0.0, above=True)
    if client not in table:
        # Rows without names count as separate clients; a wrong name of the column must not silently have this effect.
        if (owner := _worded(table, CLIENTS)) is not None:
            raise InputError(
                f"{path} has no column {client!r}; if {owner!r} names the clients, say --client {bare(owner)}"
            )
        return [str(row) for row in range(seconds.size)], seconds
    place: dict[str, int] = {}
    rows = np.array([place.setdefault(str(name), len(place)) for name in table.columns[client]])
    total = np.bincount(rows, weights=seconds, minlength=len(place))
    return list(place), total / np.bincount(rows, minlength=len(place))


def _by_rounds(path: Path, table: TableFile, client: str) -> tuple[list[str], FloatArray]:
    """Return the delays of a table with a row per round; one whose columns do not read so is refused."""
    names = list(table.columns)
    clients = [name for name in names if name not in ("round", "step")]
    meant = _worded(table, DELAYS)
    if not clients or client in clients or meant is not None:
        others = [name for name in names if name != meant]
        hint = "" if meant is None else f": say which is which, as in --seconds {meant}"
        if hint and others:
            hint += f" --client {_worded(table, CLIENTS) or others[0]}"
        raise InputError(
            f"{path}: expected a column seconds, or a column per client, but the columns are {_listed(names)}"
            + printable(hint)
        )
    return clients, np.column_stack([table.numbers(name, low=0.0, above=True) for name in clients])


def _listed(names: list[str], comma: str = ", ") -> str:
    return comma.join(map(bare, names))


def _worded(table: TableFile, words: set[str]) -> str | None:
    """Return the first column with one of the words in its name."""
    return next((name for name in table.columns if set(WORD.findall(name.lower())) & words), None)


def _check_header(path: Path, table: TableFile) -> None:
    """Refuse a file that begins with a row of delays: the first client would be lost as the name of a column."""
    names = list(table.columns)
    numbers = [name for name in names if NUMBER.fullmatch(name)]  # of clients 0, 1, 2, perhaps
    if any("." in name for name in numbers) or (len(numbers) == 1 and len(names) < 3):
        raise InputError(
            f"{path}: the first line must name the columns, such as client,seconds, but it is {_listed(names, ',')}"
        )


def _moments(path: Path, names: list[str]) -> NDArray[Any]:
    """Return the moments in the order of `names`."""
    arrays = read_npz(path)
    kind = next((name for name in ("moments", "factors") if name in arrays), None)
    if kind is None:
        raise InputError(f"{path} must hold 'moments' or 'factors', but it holds {', '.join(arrays) or 'nothing'}")
    table = arrays[kind]
    if "clients" not in arrays:
        if len(table) != len(names):
            raise InputError(
                f"{path} has {kind} of {len(table)} clients, and there are delays of {len(names)}: name them in an "
                "array 'clients', or give as many"
            )
        return table
    place = {str(client): row for row, client in enumerate(arrays["clients"].tolist())}
    missing = [name for name in names if name not in place]
    if missing:
        raise InputError(f"{path} has no {kind} of {len(missing)} clients with delays, such as {missing[0]!r}")
    return np.asarray(table[[place[name] for name in names]])
