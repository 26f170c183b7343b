"""Draws the comparison as one PNG: metric over virtual time, cost of the target, and the clients' delays."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpace._base.errors import MissingExtraError
from fedpace._base.files import write_atomically
from fedpace.records.run import RunRecord
from fedpace.report import numbers
from fedpace.report.axes import BAR, INK, aside, readable_ticks, tidy
from fedpace.report.cells import caption, missed
from fedpace.report.cost_picture import draw_costs
from fedpace.report.curves import by_scheme, left_edge, metric_over_time
from fedpace.report.style import BANDED, delays_of, histogram, log_time, looks
from fedpace.report.tables import Comparison, SchemeSummary

WIDTH = 13.5
"""Inches."""
LINES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
"""Plotly's names of dashes in matplotlib's."""


def write_png(runs: Sequence[RunRecord], comparison: Comparison, path: Path) -> None:
    """Draw the comparison to `path`."""
    names = [_legend_name(scheme, comparison) for scheme in comparison.schemes]
    columns = _legend_columns(names)
    rows = -(-len(names) // columns)
    figure = new_figure(WIDTH, 4.5 + 0.2 * rows)
    if any(scheme.cost.work for scheme in comparison.schemes):
        left, middle, right = figure.subplots(1, 3, width_ratios=(1.6, 1, 0.9))
        draw_costs(middle, comparison)
    else:  # records of earlier versions do not say
        left, right = figure.subplots(1, 2, width_ratios=(1.75, 1))
    figure.suptitle(caption(comparison), x=0.005, ha="left", fontsize=9.5, color=INK, parse_math=False)
    handles = _draw_curves(left, runs, comparison)
    _draw_delays(right, runs)
    _draw_legend(figure, handles, names, columns)
    save(figure, path)


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure, in inches."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as cause:
        raise MissingExtraError("a picture", extra="report", missing="matplotlib") from cause
    # Not pyplot: it keeps every figure in a global list and chooses a backend by the display.
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Any, path: Path) -> None:
    """Write a figure as PNG, wholly or not at all."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # Labels are the user's: a letter that the font lacks is drawn as a box, which is no reason to fail.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        # No time stamp nor version inside: the same runs give the same bytes.
        figure.savefig(buffer, format="png", metadata={"Software": None})
    write_atomically(path, buffer.getvalue())


def _draw_curves(axes: Any, runs: Sequence[RunRecord], comparison: Comparison) -> list[Any]:
    """Draw the curves; return their handles for the legend."""
    drawn = [(scheme, metric_over_time(members)) for scheme, members in by_scheme(runs, comparison)]
    logarithmic = log_time(runs, comparison)
    edge = left_edge([curve for _, curve in drawn if curve is not None]) if logarithmic else 0.0
    style = looks(comparison)
    handles = []
    for scheme, curve in drawn:
        look = style[scheme.label]
        if curve is None:
            (line,) = axes.plot([], [], color=look.colour, linestyle=LINES[look.dash])
        else:
            x = np.maximum(curve.x, edge)
            if scheme.runs > 1 and len(comparison.schemes) <= BANDED:
                axes.fill_between(x, curve.low, curve.high, step="post", color=look.colour, alpha=0.15, linewidth=0)
            (line,) = axes.step(
                x,
                curve.mean,
                where="post",
                color=look.colour,
                linestyle=LINES[look.dash],
                linewidth=1.9,
                zorder=3,
                marker="o" if len(x) == 1 else None,  # a line through one point cannot be seen
            )
            time = scheme.time_to_target
            end, height = curve.arrival(time.mean if time and scheme.always_reached else None)
            _mark_end(axes, scheme, (max(end, edge), height), look.colour, comparison)
        handles.append(line)
    if logarithmic:
        axes.set_xscale("log")
    else:
        axes.set_xlim(left=0)
    clock = comparison.clock
    tidy(axes, f"{comparison.metric.capitalize()} over {clock}", f"{clock} in seconds", comparison.metric)
    readable_ticks(axes, logarithmic)
    if comparison.target is not None:
        marks = ["dot: target held"]
        if any(scheme.censored for scheme in comparison.schemes):
            marks.append("arrow: stopped at an easier one")
        if any(not (scheme.always_reached or scheme.censored) for scheme in comparison.schemes):
            marks.append("cross: not held in every run")
        aside(axes, " · ".join(marks))
        axes.axhline(comparison.target, color=INK, linestyle=(0, (5, 4)), linewidth=1, zorder=2)
        axes.annotate(
            f"target {numbers.given(comparison.target)}",
            (0.008, comparison.target),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            fontsize=8.5,
            color=INK,
        )
        axes.margins(y=0.08)
    return handles


def _draw_legend(figure: Any, handles: list[Any], names: list[str], columns: int) -> None:
    """Below both axes, where no curve can pass underneath it."""
    placeholders = [f"scheme {position}" for position in range(len(names))]
    legend = figure.legend(handles, placeholders, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    # Set afterwards: the constructor hides labels that begin with an underscore, and reads dollars as mathematics.
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(name)


def _mark_end(axes: Any, scheme: SchemeSummary, end: tuple[float, float], colour: str, comparison: Comparison) -> None:
    """A dot where a scheme arrived, a cross where it gave up, an arrow where it was stopped at an easier target."""
    if comparison.target is None:
        return
    arrived = scheme.always_reached
    axes.plot(
        *end, marker="o" if arrived else ">" if scheme.censored else "X", color=colour, markersize=6 if arrived else 8,
        markeredgecolor="white", markeredgewidth=0.8, zorder=4, clip_on=False,
    )  # fmt: skip


def _legend_name(scheme: SchemeSummary, comparison: Comparison) -> str:
    label = numbers.shortened(scheme.label, 40)
    facts = []
    if comparison.target is not None:
        if scheme.time_to_target is None or not scheme.always_reached:
            facts.append(missed(scheme).text)
        else:
            facts.append(numbers.seconds(scheme.time_to_target.mean))
            first = scheme.first_crossing
            if first is not None and numbers.seconds(first.mean) != facts[0]:
                facts.append(f"first met at {numbers.seconds(first.mean)}")
    if scheme.diverged:
        facts.append(f"{scheme.diverged} of {scheme.runs} diverged")
    return f"{label}: {', '.join(facts)}" if facts else label


def _legend_columns(names: list[str]) -> int:
    """As many as fit, evenly filled: a letter takes about a fourteenth of an inch, the line before it half an inch."""
    fitting = max(1, int(WIDTH / (max(len(name) for name in names) / 14 + 0.7)))
    rows = -(-len(names) // fitting)
    return -(-len(names) // rows)


def _draw_delays(axes: Any, runs: Sequence[RunRecord]) -> None:
    delays = delays_of(runs)
    tidy(axes, "Delays of the clients", "mean seconds of a client's round", "clients")
    if not len(delays):
        axes.text(0.5, 0.5, "no delays recorded", transform=axes.transAxes, ha="center", va="center", color=INK)
        axes.set(xticks=[], yticks=[])
        return
    counts, edges, logarithmic = histogram(delays)
    if logarithmic:
        axes.set_xscale("log")
    axes.bar(edges[:-1], counts, width=np.diff(edges), align="edge", color=BAR, edgecolor="white", linewidth=0.6)
    if len(counts) == 1:
        axes.margins(x=1)
    top = float(counts.max())
    axes.set_ylim(0, top * 1.35)
    readable_ticks(axes, logarithmic)
    middle, late = (float(value) for value in np.quantile(delays, [0.5, 0.9]))
    # Named in a legend above the bars, where names cannot meet however close the two are.
    axes.vlines(middle, 0, top * 1.06, color=INK, linewidth=1.6, label=f"median {numbers.seconds(middle)}")
    axes.vlines(
        late, 0, top * 1.06, color=INK, linewidth=1.6, linestyle=(0, (2, 1.5)),
        label=f"90 % of clients within {numbers.seconds(late)}",
    )  # fmt: skip
    axes.legend(loc="upper left", frameon=False, fontsize=9, borderaxespad=0.2)
