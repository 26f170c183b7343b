"""`fedpace plan` chooses the clients to wait for before any training; `fedpace population` simulates huge fleets."""

from __future__ import annotations

import dataclasses
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from fedpace._base.checks import FloatArray, above, bare, between, did_you_mean, finite, printable
from fedpace._base.errors import InputError
from fedpace._base.files import read_npz
from fedpace.cli.parameters import AsJson, print_json

if TYPE_CHECKING:
    from fedpace.delays.csv_files import TableFile
    from fedpace.population.admission import Admission
    from fedpace.population.simulator import Result


HOUR = 3600.0
TELL_SECONDS = 2.0
"""Real seconds between two lines of progress."""


def population(
    devices: Annotated[int, typer.Option(help="Devices of the fleet.")] = 1_000_000,
    scenario: Annotated[
        str, typer.Option(help="Fleet: alike, rare (slow devices hold rare classes), rare-shy, or zones.")
    ] = "rare",
    policies: Annotated[
        str, typer.Option(help='Admission policies with options: "paced,first-come(buffer=100)".')
    ] = "paced,first-come,over-selection",
    concurrency: Annotated[int, typer.Option(help="Most devices that train at a time.")] = 1000,
    hours: Annotated[float, typer.Option(help="Virtual hours to simulate.")] = 2.0,
    start_hour: Annotated[float, typer.Option(help="Hour of the day at which the simulation begins.")] = 20.0,
    learn: Annotated[
        bool, typer.Option("--learn/--load-only", help="Train a real model, or only simulate load.")
    ] = True,
    steer: Annotated[
        float, typer.Option(help="Pace steering: check-ins per second to aim at; 0 = devices return as they like.")
    ] = 0.0,
    edges: Annotated[
        float | None,
        typer.Option(
            help="Put an edge aggregator into each time zone, which sends its sums every so many seconds.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="Accuracy whose time is reported, if it is held.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all draws.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for records and a picture.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate which devices are admitted to train as they check in by day and night."""
    from fedpace._base.registry import admission, scheme_table, split_list
    from fedpace.population import Edges, Limits, Steering, simulate
    from fedpace.population import scenario as make_scenario
    from fedpace.population.simulator import held_since

    above(hours, 0, "--hours")
    finite(hours, "--hours")
    if target is not None:
        between(target, 0, 1, "--target")
    groups, learning = make_scenario(scenario, devices, seed=seed)
    chosen: dict[str, Any] = {}
    for label in split_list(policies, "--policies"):
        if label in chosen:
            raise InputError(f"--policies names {label} twice")
        table = scheme_table(label, "--policies")
        name = table.pop("name")
        table.pop("label", None)
        chosen[label] = admission.make(name, **table)
    if not chosen:
        raise InputError("--policies names no admission policy")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)  # a folder that cannot be made is better known before the simulation
    results: dict[str, Result] = {}
    for label, policy in chosen.items():
        result = simulate(
            groups,
            policy,
            limits=Limits(concurrency=concurrency),
            learning=learning if learn else None,
            steering=Steering(steer) if steer else None,
            seconds=hours * HOUR,
            start_hour=start_hour,
            rollout=2 * HOUR if learn else 24 * HOUR,
            edges=None if edges is None else Edges.of_zones(groups, edges),
            seed=seed,
            watch=None if as_json else _Progress(label, hours * HOUR),
        )
        if target is not None and result.evaluations:
            result.held = held_since(result, target, 10, 60.0)
        results[label] = result
    if out is not None:
        _write(results, out)
    if as_json:
        print_json({label: result.summary() for label, result in results.items()})
    else:
        _show(results, out)


class _Progress:
    """A line on standard error every few seconds."""

    def __init__(self, label: str, seconds: float) -> None:
        self._label, self._seconds, self._told = label, seconds, time.monotonic()

    def __call__(self, clock: float, admission: Admission, result: Result) -> None:
        if time.monotonic() - self._told >= TELL_SECONDS:
            self._told = time.monotonic()
            last = f", accuracy {result.evaluations[-1].accuracy:.3f}" if result.evaluations else ""
            training = int(admission.book.in_flight.sum())
            sys.stderr.write(
                f"{self._label}: {clock / self._seconds:4.0%}, {clock / HOUR:.1f} h, step {admission.book.version}, "
                f"{training:,} devices train{last}\n"
            )


def _write(results: dict[str, Result], out: Path) -> None:
    from fedpace._base.files import json_bytes, keeping, write_atomically
    from fedpace.report.population_picture import write_population_png

    with keeping(out):
        for label, result in results.items():
            record = {
                **result.summary(),
                "evaluations": [
                    {"clock": e.clock, "step": e.version, "accuracy": e.accuracy, "groups": e.groups.tolist()}
                    for e in result.evaluations
                ],
                "load": result.load.tolist(),
            }
            name = "".join(sign if sign.isalnum() or sign in "-." else "_" for sign in label)
            write_atomically(out / f"{name}.json", json_bytes(record))
    write_population_png(results, out / "population.png")


def _show(results: dict[str, Result], out: Path | None) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    headings = (
        "Policy",
        "Accuracy",
        "Worst group",
        "Target held",
        "Steps",
        "Trained",
        "Wasted",
        "Check-ins/s",
        "Peak/s",
    )
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "Policy" else "right")
    for label, result in results.items():
        facts = result.summary()
        wasted = facts["lost"] + facts["abandoned"]
        table.add_row(
            label,
            "" if facts["accuracy"] is None else f"{facts['accuracy']:.3f}",
            "" if facts["worst_group_accuracy"] is None else f"{facts['worst_group_accuracy']:.3f}",
            "" if result.held is None else f"{result.held:,.0f} s",
            f"{result.steps:,}",
            f"{facts['answered']:,}",
            f"{wasted / max(facts['admitted'], 1):.0%}",
            f"{facts['mean_check_ins_per_second']:,.0f}",
            f"{facts['peak_check_ins_per_second']:,.0f}",
        )
    console.print(table)
    console.print(
        "Worst: accuracy on the data of the worst group. Held: when the target is held. Trained: devices whose update "
        "counted. Wasted: part of the admitted devices that dropped out or were abandoned. Load: check-ins per second."
    )
    if out is not None:
        console.print(f"  {out / 'population.png'}")


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
    from fedpace.delays.csv_files import read_table

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
