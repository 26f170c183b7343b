"""`fedpace population`: admission policies on a simulated fleet of up to hundreds of millions of devices."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpace._base.errors import InputError
from fedpace.cli.options import AsJson, print_json

if TYPE_CHECKING:
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
    target: Annotated[
        float | None, typer.Option(help="Accuracy whose time is reported, if it is held.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all draws.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for records and a picture.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate admission: devices check in by day and night, and a policy says which train."""
    from fedpace._base.registry import admission, scheme_table, split_list
    from fedpace.population import Limits, Steering, simulate
    from fedpace.population import scenario as make_scenario
    from fedpace.population.simulator import held_since

    groups, learning = make_scenario(scenario, devices, seed=seed)
    chosen: dict[str, Any] = {}
    for label in split_list(policies, "--policies"):
        table = scheme_table(label, "--policies")
        name = table.pop("name")
        table.pop("label", None)
        chosen[label] = admission.make(name, **table)
    if not chosen:
        raise InputError("--policies names no admission policy")
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
    from fedpace.report.population import write_population_png

    out.mkdir(parents=True, exist_ok=True)
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
