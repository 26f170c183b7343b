"""Output at the end of commands that run or report runs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fedpace._base.errors import InputError
from fedpace._base.files import json_bytes, keeping, write_atomically
from fedpace.cli.common import print_json
from fedpace.records.catalogue import PLAN, comparison_folders
from fedpace.records.run import INFO, RunRecord, find_runs, in_order
from fedpace.report.delay_grid import build_grid
from fedpace.report.folder import report_files, write_reports
from fedpace.report.influence import influence_sentence
from fedpace.report.questions import at_time, retarget
from fedpace.report.summary import sentences
from fedpace.report.tables import render_costs, render_table
from fedpace.runner import Plan, planned


@dataclass(frozen=True)
class Question:
    """What is asked of runs that were recorded with something else in mind."""

    target: float | None = None
    hold: int | None = None
    at: float | None = None
    looks: str | None = None

    @property
    def suffix(self) -> str:
        """What the files of another target are called by: those of the runs' own stay as they are."""
        asked = {"target": self.target, "hold": self.hold}
        said = "".join(f"-{name}-{value:g}" for name, value in asked.items() if value is not None)
        return said if self.looks is None else f"{said}-looks-{self.looks}"


def report_folder(
    folder: Path,
    console: Console,
    *,
    as_json: bool,
    plan: Plan | None = None,
    records: Sequence[RunRecord] | None = None,
    question: Question | None = None,
) -> None:
    """Write and print the reports of all that `folder` holds: of one experiment, or of one per delay model.

    `plan` and `records` are what is in it, where that is at hand. `question` asks for another target, or for a time.
    """
    asked = question or Question()
    if records is None and (below := _comparisons(folder)):
        _report_each(below, console, as_json=as_json, question=asked)
        return
    runs = retarget(find_runs(folder) if records is None else in_order(records), asked.target, asked.hold, asked.looks)
    if plan is not None:
        names = list(plan.experiments)
    else:
        names = [] if records is not None or (folder / INFO).exists() else list(planned(folder) or {})
    if len(names) < 2:
        comparison = write_reports(runs, folder, suffix=asked.suffix)
        instant = None if asked.at is None else at_time(runs, asked.at)
        if as_json:
            when = {} if instant is None else {"at": instant.as_json()}
            print_json({"folder": str(folder), **comparison.as_json(), **when})
            return
        console.print(render_table(comparison, console.width))
        if (costs := render_costs(comparison, console.width)) is not None:
            console.print(costs)
        said = sentences(comparison)
        if instant is not None:
            said.append(instant.sentence())
        console.print(" ".join(said), highlight=False, markup=False)
        if bounded := influence_sentence(runs):
            console.print(bounded, highlight=False, markup=False)
        _name_files([folder], console, asked.suffix)
        return
    under = {name: [run for run in runs if run.info.experiment["delays"]["name"] == name] for name in names}
    if asked.at is not None:
        one = folder / next(iter(under))
        raise InputError(f"{folder} holds runs under several delay models: ask --at of one of them, such as {one}")
    found = {name: write_reports(some, folder / name, suffix=asked.suffix) for name, some in under.items() if some}
    content = {"delays": {name: comparison.as_json() for name, comparison in found.items()}}
    figures = report_files(folder, asked.suffix)[-1]
    with keeping(figures):
        write_atomically(figures, json_bytes(content))
    if as_json:
        print_json({"folder": str(folder), **content})
        return
    console.print(build_grid(found))
    _name_files([folder / name for name in found], console, asked.suffix)
    console.print(f"  {figures}", highlight=False, markup=False)


def _comparisons(folder: Path) -> list[Path]:
    """Return the comparisons below a folder that is none itself."""
    if (folder / INFO).exists() or (folder / PLAN).exists():
        return []
    return [place for place in comparison_folders(folder) if any(place.rglob(INFO))]


def the_comparison(folder: Path) -> Path:
    """Return the folder of the one comparison below a folder that is none itself; else the folder."""
    below = _comparisons(folder)
    if len(below) > 1:  # their schemes share labels, so together they would be mixed up
        named = "".join(f"\n  fedpace resume {shlex.quote(str(place))}" for place in below)
        raise InputError(f"{folder} holds {len(below)} comparisons; go on with one of them:{named}")
    return below[0] if below else folder


def _report_each(folders: list[Path], console: Console, *, as_json: bool, question: Question) -> None:
    """Report several comparisons one after the other: their schemes share labels, and are not one another's rivals."""
    if as_json:
        asked = {place: retarget(find_runs(place), question.target, question.hold, question.looks) for place in folders}
        found = [write_reports(runs, place, suffix=question.suffix) for place, runs in asked.items()]
        content = [{"folder": str(place), **each.as_json()} for place, each in zip(folders, found, strict=True)]
        print_json({"comparisons": content})
        return
    for place in folders:
        console.print(f"\n{place}", style="bold", highlight=False, markup=False)
        report_folder(place, console, as_json=False, question=question)


def _name_files(folders: Sequence[Path], console: Console, suffix: str) -> None:
    for folder in folders:
        for path in report_files(folder, suffix):
            console.print(f"  {path}", highlight=False, markup=False)
