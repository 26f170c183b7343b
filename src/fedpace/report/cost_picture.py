"""Draws the cost of reaching the target: client work against virtual time, one mark per scheme."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpace.report import numbers
from fedpace.report.axes import INK, aside, readable_ticks, tidy
from fedpace.report.placing import NAMED, sides
from fedpace.report.style import looks
from fedpace.report.tables import Comparison, SchemeSummary

MARKS = {"solid": "o", "dash": "s", "dot": "D", "dashdot": "^"}
"""By the dashes of the curves."""
LETTER = 0.0195
"""Width of a letter of a name, as a share of the axes'."""
OFFSETS = {
    "top": (0, 9, "center", "bottom"),
    "bottom": (0, -9, "center", "top"),
    "right": (8, 0, "left", "center"),
    "left": (-8, 0, "right", "center"),
}
"""Of a name from its mark: points to the right and up, and which of its edges that is."""


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
    """Write each mark's name beside it."""
    axes.autoscale_view()  # else the limits are set when the picture is saved, which is too late
    places = axes.transAxes.inverted().transform(axes.transData.transform(points))
    for side, point, name in zip(sides(places.tolist(), names, LETTER), points, names, strict=True):
        right, up, ha, va = OFFSETS[side]
        axes.annotate(
            name, point, xytext=(right, up), textcoords="offset points", ha=ha, va=va, fontsize=8, color=INK, zorder=4,
            parse_math=False,
        )  # fmt: skip


def _point(scheme: SchemeSummary) -> tuple[float, float] | None:
    """Return seconds and client-seconds: to the target, or to the end where it was not always held."""
    if scheme.cost.work is None:
        return None
    return float(np.mean([r.ended if r.seconds is None else r.seconds for r in scheme.results])), scheme.cost.work.mean
