"""What lying clients cost, as a table and as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Costs = dict[tuple[str, str, str], dict[bool, list[float]]]
"""(scheme, lie, who) -> defences off or on -> costs, seed by seed; infinite = never."""
ALLOWED = {"1": 1.5, "20%": 1.5, "20% slowest": 2.0}
WORST = 30.0
"""Where the picture ends."""


def costs(done: Mapping[str, Mapping[str, Any]]) -> Costs:
    """Return times to the target over those of honest clients without defences."""
    seeds: dict[tuple[str, str, str], dict[bool, dict[str, float]]] = {}
    for name, run in done.items():
        scheme, lie, who, seed, trust = name.split(" | ")
        base = done.get(f"{scheme} | honest | 1 | {seed} | off", {}).get("seconds")
        if base:
            cost = math.inf if run["seconds"] is None else run["seconds"] / base
            place = (scheme, lie, who if lie != "honest" else "-")
            seeds.setdefault(place, {}).setdefault(trust == "on", {})[seed] = cost
    return {place: {on: list(told.values()) for on, told in both.items()} for place, both in seeds.items()}


def mean(values: Sequence[float]) -> float:
    """Return the geometric mean of the runs that got there; infinite where none did."""
    reached = [value for value in values if math.isfinite(value)]
    return math.exp(float(np.mean(np.log(reached)))) if reached else math.inf


def shown(values: Sequence[float] | None) -> str:
    """Return a mean cost, and how many runs never got there."""
    if not values:
        return ""
    lost = sum(math.isinf(value) for value in values)
    number = "-" if lost == len(values) else f"{mean(values):.2f}"
    return number if not lost else f"{number} ({lost}/{len(values)} never)"


def markdown(found: Costs, schemes: Sequence[str], lies: Sequence[str], who: Sequence[str]) -> str:
    """Return the table: off → on, each with the number of seeds."""
    lines = [f"| lie | who | {' | '.join(schemes)} |", "|---|---|" + "---|" * len(schemes)]
    for lie, group in _rows(found, lies, who):
        cells = []
        for scheme in schemes:
            both = found.get((scheme, lie, group), {})
            off, on = (shown(both.get(side)) + _seeds(both.get(side)) for side in (False, True))
            cells.append(f"{off or '·'} → {on or '·'}" if both else "")
        lines.append(f"| {lie} | {group} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _seeds(values: Sequence[float] | None) -> str:
    return f" [{len(values)}]" if values else ""


def _rows(found: Costs, lies: Sequence[str], who: Sequence[str]) -> list[tuple[str, str]]:
    there = {(lie, group) for _, lie, group in found}
    return [(lie, group) for lie in lies for group in ("-", *who) if (lie, group) in there]


def picture(found: Costs, schemes: Sequence[str], lies: Sequence[str], who: Sequence[str], path: Path) -> None:
    """Draw one panel per scheme: an open mark without the defences, a full one with them."""
    from matplotlib.figure import Figure

    rows = [row for row in _rows(found, lies, who) if row[1] != "1" and row[0] != "honest"]
    figure = Figure(figsize=(15, 0.34 * len(rows) + 1.6), dpi=110, layout="constrained")
    panels = figure.subplots(1, len(schemes), sharey=True)
    for panel, scheme in zip(panels, schemes, strict=True):
        for height, (lie, group) in enumerate(rows):
            both = found.get((scheme, lie, group), {})
            marks = {on: _mark(values) for on, values in both.items()}
            if len(marks) == 2:
                panel.plot([marks[False], marks[True]], [height] * 2, color="0.75", zorder=1)
            for on, at in marks.items():
                never = any(math.isinf(value) for value in both[on])
                fill = "#1f6f8b" if on else "white"
                panel.scatter(at, height, s=46, marker=">" if never else "o", color=fill, edgecolor="#1f6f8b", zorder=2)
            if not both:
                continue
            panel.plot([ALLOWED[group]] * 2, [height - 0.4, height + 0.4], color="#c8553d", linewidth=1.5, zorder=0)
        panel.set_xscale("log")
        panel.set_xlim(0.2, WORST * 1.4)
        panel.set_xticks([0.5, 1, 2, 5, 10, WORST], ["0.5", "1", "2", "5", "10", "≥ 30"], fontsize=8)
        panel.set_xticks([], minor=True)
        panel.set_title(scheme, fontsize=11)
        panel.axvline(1.0, color="0.8", linewidth=0.8, zorder=0)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(rows)), [f"{lie}, {group}" for lie, group in rows], fontsize=9)
    panels[0].invert_yaxis()
    figure.suptitle(
        "Time to the target over that of honest clients: open = no defence, full = defences on; ▶ = some run never got "
        "there; red = what was aimed at",
        fontsize=10,
    )
    figure.savefig(path)


def _mark(values: Sequence[float]) -> float:
    """Return where a mark stands: at the end of the axis where any run never got there."""
    return WORST if any(math.isinf(value) for value in values) else min(mean(values), WORST)
