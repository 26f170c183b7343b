"""The grid at a glance: a table for the terminal, and a picture of twelve rows, one per task and delay model.

python -m grid.picture grid/results.json grid/fedasync.json ../docs/without-rounds.png     in benchmarks/
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

from fedpace.report.picture import new_figure, save, tidy
from fedpace.report.style import FAINT, FIXED, INK
from grid import recorded
from grid.sceptic import Factor, Judged
from grid.schemes import BASELINE

TASKS = {
    "digits-0.3": "digits, very uneven",
    "digits-2": "digits, fairly even",
    "digits-rotated": "digits, rotated",
    "quadratic": "quadratic",
}
"""Names of tasks, for people."""


def table(summary: dict[str, Any], shown: int = 8) -> str:
    """One line a cell: the fastest schemes with their speed-ups over random, and where the flagship stands."""
    lines = []
    for cell in summary["cells"]:
        fastest = [
            f"{label} {entry['speed_up']['mean']:.2f}"
            for label, entry in cell["schemes"].items()
            if entry["speed_up"] is not None
        ][:shown]
        failed = [f"{label} ({entry['failed']})" for label, entry in cell["schemes"].items() if entry["failed"]]
        failed += [f"{label} given up" for label, entry in cell["schemes"].items() if "given_up" in entry]
        standing = cell["standing"] or "-"
        lines.append(f"{cell['cell']:<42} {standing:<8} {'  '.join(fastest)}")
        if failed:
            lines.append(f"{'':<52}failed: {', '.join(failed)}")
    verdict = {key: value for key, value in summary["verdict"].items() if key != "speed_up_over_random"}
    lines += [f"{key}: {value}" for key, value in verdict.items()]
    for name, other in summary["otherwise"].items():
        said = {key: value for key, value in other.items() if key not in ("speed_up_over_random", "cells")}
        lines.append(f"{name}: {said}")
    for label, entry in summary["verdict"]["speed_up_over_random"].items():
        mean = entry["geometric_mean_where_reached"]
        lines.append(
            f"  {label:<32} {'-' if mean is None else f'{mean:.2f}':>7}x where reached; "
            f"failed in {entry['cells_with_a_failure']} of {entry['cells']} cells"
        )
    return "\n".join(lines)


def draw(judged: Judged, path: Path) -> None:
    """Draw how many times as long as the judged scheme others take, a row per task and delay model."""
    rows = [(task, delays) for task in judged.tasks() for delays in judged.delays() if judged.cells(task, delays)]
    rivals = {row: [judged.best(cell, "baseline", "paper") for cell in judged.cells(*row)] for row in rows}
    others = {
        label: {row: _mean([judged.over(label, cell) for cell in judged.cells(*row)]) for row in rows}
        for label in ("pace", BASELINE)
    }
    best = {row: _mean(found) for row, found in rivals.items()}
    known = [factor for factor in best.values() if factor is not None]
    counted = [each for found in rivals.values() for each in found if each is not None]
    ahead = sum(each.mean > 1 for each in counted)
    figure = new_figure(6.4, 0.36 * len(rows) + 2.0)
    axes = figure.subplots()
    tidy(axes, "", f"times as long as {judged.flagship} takes to hold a target", "")
    figure.suptitle(
        f"{judged.flagship} holds targets {min(known):.1f} to {max(known):.1f} times as fast\n"
        f"as the best tuned rival: ahead for {ahead} of {len(counted)} targets",
        x=0.02, ha="left", fontsize=13, fontweight="bold", color=INK,
    )  # fmt: skip
    for y, row in enumerate(reversed(rows)):
        factor = best[row]
        axes.plot([1, others[BASELINE][row] or 1], [y, y], color=FAINT, linewidth=1.2, zorder=1)
        axes.plot([1, factor], [y, y], color=INK, linewidth=3, alpha=0.25, zorder=2, solid_capstyle="round")
        for value, colour, size in (
            (others[BASELINE][row], FIXED["random"].colour, 8),
            (others["pace"][row], FIXED["pace"].colour, 7),
            (factor, INK, 11),
        ):
            if value is not None:  # small ones in front
                axes.plot(
                    [value],
                    [y],
                    "o",
                    color=colour,
                    markersize=size,
                    markeredgecolor="white" if size > 7 else colour,
                    zorder=5 - size / 10,
                )
        if factor is not None:
            right = max(factor, others["pace"][row] or factor)  # a dot must not lie on the number
            axes.annotate(
                f"{factor:.2f}", (right, y), xytext=(9, 0), textcoords="offset points", va="center", fontsize=11,
                fontweight="bold", color=INK, bbox={"boxstyle": "square,pad=0.15", "fc": "white", "ec": "none"},
            )  # fmt: skip
    axes.axvline(1, color=FIXED["pace-async"].colour, linewidth=3, zorder=2)
    axes.set_xscale("log")
    ticks = [1, 2, 5, 10, 20, 50]
    axes.set_xticks(ticks, [f"{tick}" for tick in ticks], fontsize=11)
    axes.set_xlim(0.8, 90)
    axes.minorticks_off()
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.grid(axis="y", visible=False)
    labels = [f"{TASKS.get(task, task)} · {delays}" for task, delays in reversed(rows)]
    axes.set_yticks(range(len(rows)), labels, fontsize=11, color=INK)
    marks = {judged.flagship: FIXED["pace-async"].colour, "pace": FIXED["pace"].colour, "best rival": INK}
    for number, (label, colour) in enumerate((marks | {"random": FIXED["random"].colour}).items()):
        mark, edge = ("|", 3) if number == 0 else ("o", 1)
        axes.plot([], [], mark, color=colour, markersize=10, markeredgewidth=edge, label=label)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.42, 1.0), ncols=4, frameon=False, fontsize=11, handletextpad=0.2,
                columnspacing=1.4)  # fmt: skip
    for edge in range(1, len(rows)):
        if rows[edge][0] != rows[edge - 1][0]:
            axes.axhline(len(rows) - edge - 0.5, color=FAINT, linewidth=0.8, zorder=0)
    save(figure, path)


def _mean(found: list[Factor | None]) -> float | None:
    """Return the geometric mean of the factors that count; None if there are none."""
    counted = [math.log(each.mean) for each in found if each is not None and each.counts and math.isfinite(each.mean)]
    return math.exp(sum(counted) / len(counted)) if counted else None


if __name__ == "__main__":
    *files, picture = map(Path, sys.argv[1:])
    draw(Judged([row for file in files for row in recorded.read(file)], "pace-async"), picture)
