"""What the target cost, as axes of a picture: client work against virtual time, a mark per scheme."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpace.report import numbers
from fedpace.report.axes import INK, aside, readable_ticks, tidy
from fedpace.report.style import looks
from fedpace.report.tables import Comparison, SchemeSummary

MARKS = {"solid": "o", "dash": "s", "dot": "D", "dashdot": "^"}
"""By the dashes of the curves."""
LETTER = 0.0195
"""Width of a letter of a name, as a share of the axes'."""
Box = tuple[float, float, float, float]
"""Left, low, right and high, as shares of the axes."""
NAMED = 10
"""Marks up to which each has its name beside it; the colours of the legend tell more of them apart."""


def draw_costs(axes: Any, comparison: Comparison) -> None:
    """Draw client work against time, until the target is held; a hollow mark, where it was not always."""
    until = "to the target" if comparison.target is not None else "of the run"
    tidy(axes, "What it cost", f"{comparison.clock} {until} in seconds", f"client work {until} in seconds")
    style = looks(comparison)
    drawn: list[tuple[float, float]] = []
    names: list[str] = []
    for scheme in comparison.schemes:
        point = _point(scheme)
        if point is None:
            continue
        drawn.append(point)
        names.append(numbers.shortened(scheme.label, 22))
        look = style[scheme.label]
        held = scheme.always_reached or comparison.target is None
        axes.plot(
            *point, MARKS[look.dash], color=look.colour, markerfacecolor=look.colour if held else "white",
            markersize=9, markeredgewidth=1.6, zorder=3, clip_on=False,
        )  # fmt: skip
    if not drawn:
        axes.text(0.5, 0.5, "no costs recorded", transform=axes.transAxes, ha="center", va="center", color=INK)
        axes.set(xticks=[], yticks=[])
        return
    held_by_all = comparison.target is None or all(scheme.always_reached for scheme in comparison.schemes)
    values = np.array(drawn)
    for number, name in enumerate(("x", "y")):
        one = values[:, number]
        logarithmic = bool((one > 0).all() and one.max() > 5 * one.min())
        if logarithmic:
            getattr(axes, f"set_{name}scale")("log")
        else:
            getattr(axes, f"set_{name}lim")(0, 1.15 * one.max() or 1)
        readable_ticks(axes, logarithmic, y=name == "y", room=200 if name == "y" else 20)
    axes.margins(0.16)
    aside(axes, "better: down and left" + ("" if held_by_all else " · hollow: not held in every run"))
    if len(drawn) <= NAMED:
        _write_names(axes, drawn, names)


def _write_names(axes: Any, points: list[tuple[float, float]], names: list[str]) -> None:
    """Write each mark's name beside it, where it covers least of the marks and of the names before it."""
    axes.autoscale_view()  # else the limits are set when the picture is saved, which is too late
    places = axes.transAxes.inverted().transform(axes.transData.transform(points))
    taken = [(x - 0.02, y - 0.02, x + 0.02, y + 0.02) for x, y in places]
    for (x, y), point, name in zip(places, points, names, strict=True):
        wide = LETTER * len(name)
        boxes = {
            (0, 9, "center", "bottom"): (x - wide / 2, y + 0.03, x + wide / 2, y + 0.07),
            (0, -9, "center", "top"): (x - wide / 2, y - 0.07, x + wide / 2, y - 0.03),
            (8, 0, "left", "center"): (x + 0.03, y - 0.02, x + 0.03 + wide, y + 0.02),
            (-8, 0, "right", "center"): (x - 0.03 - wide, y - 0.02, x - 0.03, y + 0.02),
        }
        (right, up, ha, va), box = min(boxes.items(), key=lambda side: _covered(side[1], taken))
        taken.append(box)
        axes.annotate(
            name, point, xytext=(right, up), textcoords="offset points", ha=ha, va=va, fontsize=8, color=INK, zorder=4,
            parse_math=False,
        )  # fmt: skip


def _covered(box: Box, taken: list[Box]) -> float:
    """Return how much of a box others cover, or lies outside of the axes."""
    left, low, right, high = box
    outside = max(0.0, -left) + max(0.0, right - 1.0) + max(0.0, -low) + max(0.0, high - 1.0)
    over = [
        max(0.0, min(right, other[2]) - max(left, other[0])) * max(0.0, min(high, other[3]) - max(low, other[1]))
        for other in taken
    ]
    return outside + sum(over)


def _point(scheme: SchemeSummary) -> tuple[float, float] | None:
    """Return seconds and client-seconds: to the target, or to the end where it was not always held."""
    if scheme.cost.work is None:
        return None
    return float(np.mean([r.ended if r.seconds is None else r.seconds for r in scheme.results])), scheme.cost.work.mean
