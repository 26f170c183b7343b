"""The tables of docs/results.md, so that none of their numbers is typed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

NOTHING = "\N{EN DASH}"
AT_LEAST = "\N{GREATER-THAN OR EQUAL TO} "
JUDGEMENTS = {
    "charged, held": None,
    "charged, first crossing": "first_crossing",
    "free warm-up, held": "free_warmup",
    "free warm-up, first crossing": "free_warmup_first_crossing",
    "charged, held, looked at on one grid of instants": "on_grid",
}


def page(summary: Mapping[str, Any]) -> str:
    """Return all tables, the one that a sceptic would have asked for first."""
    return "\n\n".join([front(summary), judgements(summary), schemes(summary), every_cell(summary)])


def front(summary: Mapping[str, Any]) -> str:
    """One line per task and delay model, over its cells: the flagship against the best of its rivals in each cell."""
    flagship = summary["flagship"]
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for cell in summary["cells"]:
        if cell["standing"] is not None:
            groups.setdefault("/".join(cell["cell"].split("/")[:2]), []).append(cell)
    rows = []
    for name, cells in groups.items():
        rivals = _names([cell["best"]["of_all_others"] for cell in cells])
        rows.append(
            [
                *name.split("/"),
                _times(cells, "of_all_others"),
                rivals,
                _times(cells, "control"),
                _names([cell["best"]["control"] for cell in cells]),
                _ratio(_mean([_over_random(cell, flagship) for cell in cells])),
                _standings(cells),
            ]
        )
    for delays in sorted({row[1] for row in rows}):
        cells = [cell for name, some in groups.items() for cell in some if name.endswith(f"/{delays}")]
        rows.append(
            [
                "**all**",
                f"**{delays}**",
                f"**{_times(cells, 'of_all_others')}**",
                "",
                f"**{_times(cells, 'control')}**",
                "",
                _ratio(_mean([_over_random(cell, flagship) for cell in cells])),
                _standings(cells),
            ]
        )
    head = [
        "task",
        "delays",
        "over the best rival",
        "which is",
        f"over the best rival with the steps of {flagship}",
        "which is",
        "over random",
        "cells: fastest / tied / slower / failed",
    ]
    return table(head, rows)


def judgements(summary: Mapping[str, Any]) -> str:
    """One line per way to judge: what is charged, and what counts as reached."""
    rows = []
    for name, key in JUDGEMENTS.items():
        if key is not None and key not in summary["otherwise"]:
            continue
        verdict = summary["verdict"] if key is None else summary["otherwise"][key]
        over, control = verdict["speed_up_over_best_of_all_others"], verdict["speed_up_over_best_control"]
        bounded = verdict["factors_at_least"]
        rows.append(
            [
                name,
                *(AT_LEAST * (bounded.get(delays, 0) > 0) + _ratio(over[delays]) for delays in sorted(over)),
                *(_ratio(control[delays]) for delays in sorted(control)),
                " / ".join(str(verdict[standing]) for standing in ("fastest", "tied", "slower", "failed")),
                str(len(verdict["misses_what_random_reaches"])),
            ]
        )
    names = sorted(summary["verdict"]["speed_up_over_best_of_all_others"])
    head = [
        "judged by",
        *(f"over the best rival, {name}" for name in names),
        *(f"over the best control, {name}" for name in names),
        "fastest / tied / slower / failed",
        "misses what random reaches",
    ]
    return table(head, rows)


def schemes(summary: Mapping[str, Any]) -> str:
    """One line per scheme: its speed-up over random, and where it failed."""
    overall = summary["verdict"]["speed_up_over_random"]
    order = sorted(
        overall, key=lambda label: (overall[label]["cells_with_a_failure"], -(_value(overall[label]) or 0.0))
    )
    rows = [
        [
            label,
            _ratio(_value(overall[label])),
            f"{overall[label]['cells_with_a_failure']} of {overall[label]['cells']}",
            str(overall[label].get("cells_given_up", 0)),
        ]
        for label in order
    ]
    return table(["scheme, tuned", "over random, where reached", "cells with a miss", "cells given up"], rows)


def every_cell(summary: Mapping[str, Any]) -> str:
    """One line per cell: seconds of the flagship, of its best rival with the options it has, of the best control."""
    flagship = summary["flagship"]
    rows = []
    for cell in summary["cells"]:
        best, control = cell["best"]["of_all_others"], cell["best"]["control"]
        rows.append(
            [
                cell["cell"],
                _seconds(cell, flagship),
                _described(cell, best),
                _interval(cell["flagship_over_best"]["of_all_others"]),
                _described(cell, control),
                _interval(cell["flagship_over_best"]["control"]),
                cell["standing"] or "",
            ]
        )
    return table(["cell", flagship, "best rival", "ratio", "best control", "ratio", "standing"], rows)


def _times(cells: Sequence[Mapping[str, Any]], what: str) -> str:
    found = [each for cell in cells if (each := cell["flagship_over_best"][what]) is not None]
    return _least(found) + _ratio(_mean([each["mean"] for each in found]))


def _least(ratios: Sequence[Mapping[str, Any]]) -> str:
    """Return the mark of a lower bound: some rival's run was given up once it was far behind."""
    return AT_LEAST if any("at_least" in each for each in ratios) else ""


def _over_random(cell: Mapping[str, Any], label: str) -> float | None:
    speed_up = cell["schemes"][label]["speed_up"]
    return None if speed_up is None else float(speed_up["mean"])


def _mean(values: Sequence[float | None]) -> float | None:
    logs = [math.log(value) for value in values if value is not None]
    return math.exp(sum(logs) / len(logs)) if logs else None


def _ratio(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}x"


def _names(labels: Sequence[str | None]) -> str:
    found = [label for label in labels if label is not None]
    counted = sorted(set(found), key=lambda label: (-found.count(label), label))
    return ", ".join(counted)


def _standings(cells: Sequence[Mapping[str, Any]]) -> str:
    found = [cell["standing"] for cell in cells]
    return " / ".join(str(found.count(standing)) for standing in ("fastest", "tied", "slower", "failed"))


def _seconds(cell: Mapping[str, Any], label: str | None) -> str:
    if label is None or label not in cell["schemes"]:
        return NOTHING
    entry = cell["schemes"][label]
    if entry["failed"]:
        return f"missed in {entry['failed']} of {len(entry['seconds'])}"
    if "given_up" in entry:
        return f"{AT_LEAST}{entry['at_least']:,.0f} s"
    return f"{entry['geometric_mean']:,.0f} s"


def _described(cell: Mapping[str, Any], label: str | None) -> str:
    if label is None:
        return NOTHING
    entry = cell["schemes"][label]
    options = ", ".join(f"{key} {value}" for key, value in entry["options"].items())
    if entry["factor"] != 1:
        options += f", lr x {entry['factor']:.2g}"
    return f"{label} ({options}) {_seconds(cell, label)}" if options else f"{label} {_seconds(cell, label)}"


def _interval(ratio: Mapping[str, float] | None) -> str:
    if ratio is None:
        return NOTHING
    if "at_least" in ratio:  # an interval of lower bounds says nothing about the factor
        return f"{AT_LEAST}{ratio['mean']:.2f}"
    return f"{ratio['mean']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"


def _value(entry: Mapping[str, Any]) -> float | None:
    found: float | None = entry["geometric_mean_where_reached"]
    return found


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows of text as Markdown has them."""
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)
