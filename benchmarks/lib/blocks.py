"""What documents quote of recorded results: tables, and the sentences that say what made them.

    <!-- table: NAME/FLAGSHIP/PART -->      a table of a grid: front, tasks, schemes, cells, levels or federations
    <!-- table: demo/readme -->             the table of README
    <!-- table: limit/tasks -->             how far pace-async is from the oracle of limit.py
    <!-- table: NAME/baselines -->          times of all schemes of a comparison
    <!-- made: NAME -->                     what made the record

Each block ends with `<!-- end -->`. `filled` writes what is between from the records.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from lib.records import ROOT, Record, Stamp
from scipy import stats

from grid import recorded, sceptic

BLOCK = re.compile(r"(<!-- (table|made): ([\w/.-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
PARTS = {
    "front": sceptic.front,
    "tasks": sceptic.by_task,
    "schemes": sceptic.by_scheme,
    "cells": sceptic.every_cell,
    "levels": sceptic.by_level,
    "federations": sceptic.by_federation,
}
README = {"pace-async": "`pace-async`", "pace": "`pace`, in rounds", "fedbuff": "`fedbuff`"}
README_BASELINE = "`random`, ten clients per round"


def blocks(text: str) -> list[tuple[str, str]]:
    """Return kind and name of every block of a document."""
    return [(found[2], found[3]) for found in BLOCK.finditer(text)]


def filled(text: str, records: Mapping[str, Record], stamps: Mapping[str, Stamp]) -> str:
    """Return a document with every block as the records have it."""

    def content(found: re.Match[str]) -> str:
        begin, kind, name, end = found.groups()
        record = records[name.partition("/")[0]]
        inside = record.note(stamps[record.name]) if kind == "made" else table(record, name)
        return f"{begin}{inside}\n{end}"

    return BLOCK.sub(content, text)


def table(record: Record, name: str) -> str:
    """Return the table of this name in Markdown."""
    special = SPECIAL.get(name) or SPECIAL.get(name.partition("/")[2])
    if special is not None:
        return special(json.loads((ROOT / record.file).read_text(encoding="utf-8")))
    _, flagship, part = name.split("/")
    return PARTS[part](judged((record.file, *record.beside), record.yardstick, flagship))


@cache
def judged(files: tuple[str, ...], yardstick: str, flagship: str) -> sceptic.Judged:
    """Return a grid, perhaps recorded in several files, as the sceptic judges it."""
    rows = [row for file in files for row in recorded.read(ROOT / file)]
    if yardstick:
        rows += [row for row in recorded.read(ROOT / yardstick) if row["scheme"] == flagship]
    return sceptic.Judged(rows, flagship)


def demo_table(comparison: Mapping[str, Any]) -> str:
    """Return the table of README: times, speed-ups and final accuracy of four schemes."""
    schemes = {scheme["label"]: scheme for scheme in comparison["schemes"]}
    held = f"virtual seconds to hold accuracy {comparison['target']:g}"
    lines = [
        f"| scheme | {held} | times as fast as random | final accuracy |",
        "|---|---|---|---|",
    ]
    for label, title in {**README, comparison["baseline"]: README_BASELINE}.items():
        scheme = schemes[label]
        ratio = "1" if label == comparison["baseline"] else _interval(scheme["speed_up"], 0)
        lines.append(
            f"| {title} | {_interval(scheme['time_to_target'], 0)} | {ratio} | {scheme['final']['mean']:.3f} |"
        )
    return "\n".join(lines)


def limit_table(limit: Mapping[str, Any]) -> str:
    """Return how many times as long as the oracle a scheme takes: geometric means over cells, by task and delays."""
    groups: dict[str, dict[str, list[float]]] = {}
    for name, cell in limit["cells"].items():
        task, delays, _, level = name.split("/")
        if cell["ratio"]:
            groups.setdefault(f"{task}, {delays}", {}).setdefault(level, []).append(cell["ratio"])
    lines = [f"| cells | `{limit['scheme']}` over the limit: easy | hard |", "|---|---|---|"]
    every: dict[str, list[float]] = {"easy": [], "hard": []}
    for name, by in groups.items():
        lines.append(f"| {name} | {_mean(by.get('easy', []))} | {_mean(by.get('hard', []))} |")
        for level, ratios in by.items():
            every[level] += ratios
    return "\n".join([*lines, f"| all | {_mean(every['easy'])} | {_mean(every['hard'])} |"])


def baselines_table(comparison: Mapping[str, Any]) -> str:
    """Return times, speed-ups, rounds and clients of all schemes; means of times are geometric."""
    lines = ["| scheme | seconds to target | speed-up | rounds | clients per round |", "|---|---|---|---|---|"]
    for scheme in comparison["schemes"]:
        times = [run["seconds"] for run in scheme["results"] if run["reached"]]
        told, ratio, rounds = "not reached", "-", "-"
        if len(times) == scheme["runs"]:
            told, ratio = _interval(_geometric(times), 0), f"{scheme['speed_up']['mean']:.2f}"
            rounds = f"{scheme['rounds_to_target']:.1f}"
        elif times:
            told = f"{len(times)} of {scheme['runs']} reached"
        lines.append(f"| {scheme['label']} | {told} | {ratio} | {rounds} | {scheme['clients_per_round']:.1f} |")
    return "\n".join(lines)


def _geometric(times: list[float]) -> dict[str, float]:
    """Return the geometric mean of times with its 95 % interval."""
    logs = np.log(times)
    mean, half = logs.mean(), stats.t.ppf(0.975, len(logs) - 1) * stats.sem(logs)
    return {name: math.exp(value) for name, value in (("mean", mean), ("low", mean - half), ("high", mean + half))}


def _mean(ratios: list[float]) -> str:
    return f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}" if ratios else "-"


SPECIAL = {"demo/readme": demo_table, "limit/tasks": limit_table, "baselines": baselines_table}


def _interval(found: Mapping[str, float], digits: int) -> str:
    return f"{found['mean']:,.{digits}f} ({found['low']:,.{digits}f} to {found['high']:,.{digits}f})"
