"""Draws charts with matplotlib: the picture of a comparison, of a delay model and of a data partition."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace._base.errors import MissingExtraError
from fedpace._base.files import write_atomically
from fedpace.delays.base import DelaySummary
from fedpace.records.run import RunRecord
from fedpace.report import numbers
from fedpace.report.comparison import Comparison, SchemeSummary
from fedpace.report.figures import (
    MAX_NAMED,
    Axis,
    Chart,
    Series,
    delays_chart,
    histogram_chart,
    looks,
    metric_chart,
    work_chart,
)
from fedpace.report.plotly_figures import NAME_GAP, NAME_GAPS, PATH_STEP, dense_path, line_names, name_sides
from fedpace.report.style import BAR, FAINT, INK, MAX_BANDED
from fedpace.report.summary import headline
from fedpace.report.tables import caption, missed

WIDTH = 6.8
"""Width of the picture in inches: narrow, so that a phone shows its letters large enough."""
DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
"""Plotly's names of dashes -> matplotlib's."""
MARKS = {
    "circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "x": "X", "triangle-right": ">", "line-ns": "|",
}  # fmt: skip
"""Plotly's names of marks -> matplotlib's; a hollow mark has the name with `-open`."""
LETTER = 0.028
"""Width of a letter of a mark's name, as a share of the axes' width."""
CURVE_LETTER = 0.0148
"""Width of a letter of a curve's name, as a share of the axes' width: curves have the whole width of the picture."""
OFFSETS = {
    "top": (0, 9, "center", "bottom"),
    "bottom": (0, -9, "center", "top"),
    "right": (8, 0, "left", "center"),
    "left": (-8, 0, "right", "center"),
}
"""Side of a mark -> offset of its name in points to the right and up, and the edge of the name that this refers to."""
CLASS_TICKS = 20
"""Most class labels on an axis."""


def write_png(runs: Sequence[RunRecord], comparison: Comparison, path: Path) -> None:
    """Draw the metric over time, and below it the cost and the delays of a comparison, to `path`."""
    curves = metric_chart(runs, comparison)
    costs = work_chart(comparison, seeds=False)
    curve_title = f"{comparison.metric.capitalize()} over {comparison.clock}"
    charts = [curves, *([costs] if costs is not None else []), delays_chart(runs)]
    titles = [curve_title, *(["What it cost"] if costs is not None else []), "Delays of the clients"]
    missing = ["nothing was evaluated", *([""] if costs is not None else []), "no delays recorded"]
    names = [_legend_text(scheme, comparison) for scheme in comparison.schemes]
    columns = _legend_columns(names)
    result, facts = textwrap.wrap(headline(comparison), 54), textwrap.wrap(caption(comparison), 86)
    figure = new_figure(WIDTH, 7.5 + 0.2 * (len(result) + len(facts) + -(-len(names) // columns)))
    if result:
        words = "\n".join(result)
        figure.suptitle(words, x=0.01, ha="left", fontsize=14, fontweight="bold", color=INK, parse_math=False)
    bands = len(comparison.schemes) <= MAX_BANDED
    places = [["curves"] * (len(charts) - 1), [str(number) for number in range(1, len(charts))]]
    drawn = figure.subplot_mosaic(places, height_ratios=(1.25, 1)).values()
    for axes, chart, title, text in zip(drawn, charts, titles, missing, strict=True):
        if chart is None:
            say_empty(axes, title, text)
        else:
            draw_chart(axes, chart, bands=bands)
    legend = _draw_legend(figure, comparison, names, columns)
    legend.set_title("\n".join(facts), prop={"size": 10})
    legend.get_title().set(color="#555555", parse_math=False, ha="center")
    save(figure, path)


def write_delays_png(summary: DelaySummary, path: Path, *, title: str) -> None:
    """Draw the histogram of a delay model to `path`, with the median, the 90 % quantile and a full round marked."""
    figure = new_figure(7.5, 4.2)
    share = 100 * summary.counts / max(int(summary.counts.sum()), 1)
    quantile = dict(zip(summary.levels, summary.quantiles.tolist(), strict=True))
    known = {"median": quantile.get(0.5), "90 % within": quantile.get(0.9), "a full round": summary.full_round}
    marks = {f"{name} {numbers.seconds(value)}": value for name, value in known.items() if value is not None}
    x, y = Axis("seconds of a client's round", log=True), Axis("% of client rounds", zero=True)
    draw_chart(figure.subplots(), histogram_chart(title, share, summary.edges, marks, x, y))
    save(figure, path)


def write_partition_png(histograms: FloatArray, path: Path, *, title: str) -> None:
    """Draw (clients, classes) counts to `path`: each client's mix as colours, its size as a bar beside it."""
    clients, classes = histograms.shape
    sizes = histograms.sum(axis=1)
    figure = new_figure(9.0, float(np.clip(0.055 * clients + 2.0, 3.5, 12.0)))
    mixes, bars = figure.subplots(1, 2, width_ratios=(3, 1), sharey=True)
    shares = 100 * histograms / np.maximum(sizes, 1)[:, None]
    # Sequential, and told apart in grey and with every common colour blindness.
    drawn = mixes.imshow(shares, aspect="auto", interpolation="nearest", cmap="cividis", vmin=0)
    tidy(mixes, title, "class", "client")
    mixes.grid(False)
    mixes.set_xticks(range(0, classes, -(-classes // CLASS_TICKS)))
    figure.colorbar(drawn, ax=mixes, label="% of the client's samples", pad=0.02)
    tidy(bars, "samples per client", "samples", "")
    bars.barh(np.arange(clients), sizes, height=1.0, color=BAR)
    bars.set_xlim(left=0)
    save(figure, path)


# -- drawing a chart -------------------------------------------------------------------------------------------------


def draw_chart(axes: Any, chart: Chart, *, bands: bool = True) -> None:
    """Draw a chart into matplotlib's axes; `bands` = with bands over seeds."""
    tidy(axes, chart.title, chart.x.title, chart.y.title)
    for each in chart.series:
        _draw_series(axes, each, bands=bands)
    marked = [each for each in chart.series if each.name and each.shape == "marks"]
    if marked:
        axes.margins(0.16)
    for letter, axis in (("x", chart.x), ("y", chart.y)):
        _set_axis(axes, letter, axis, chart)
    if chart.note:
        axes.set_title(chart.note, loc="right", fontsize=8.5, color=INK)
    if chart.rule is not None:
        value, text = chart.rule
        axes.axhline(value, color=INK, linestyle=(0, (5, 4)), linewidth=1, zorder=2)
        axes.annotate(
            text, (0.008, value), xycoords=("axes fraction", "data"), xytext=(0, 3), textcoords="offset points",
            fontsize=10, color=INK,
        )  # fmt: skip
        axes.margins(y=0.08)
    if any(each.legend for each in chart.series):
        # Bars leave room for it above them; between lines it takes the emptiest place.
        place = "upper left" if any(each.shape == "area" for each in chart.series) else "best"
        axes.legend(loc=place, frameon=False, fontsize=9, borderaxespad=0.2)
    if 0 < len(marked) <= MAX_NAMED:
        write_names(axes, [(float(each.x[0]), float(each.y[0])) for each in marked], [each.name for each in marked])
    lines = [each for each in chart.series if each.name and each.shape == "steps"]
    if 0 < len(lines) <= MAX_NAMED:
        _name_curves(axes, lines, chart.rule)


def _draw_series(axes: Any, each: Series, *, bands: bool) -> None:
    colour = each.colour or INK
    if each.shape == "area":
        axes.fill_between(each.x, each.y, color=colour, linewidth=0.6, edgecolor="white")
        return
    if bands and each.low is not None and each.high is not None:
        axes.fill_between(each.x, each.low, each.high, step="post", color=colour, alpha=0.15, linewidth=0)
    hollow = each.symbol.endswith("-open")
    style: dict[str, Any] = {
        "color": colour, "alpha": each.opacity, "zorder": 3, "clip_on": each.shape != "marks",
        "marker": MARKS[each.symbol.removesuffix("-open")] if each.symbol else None, "markersize": 0.7 * each.size,
        "markerfacecolor": "white" if hollow else colour, "markeredgecolor": colour if hollow else "white",
        "markeredgewidth": 1.6 if hollow else 0.8, "label": each.legend or None,
    }  # fmt: skip
    if each.shape == "marks":
        axes.plot(each.x, each.y, linestyle="none", **style)
        return
    line = {"linestyle": DASHES[each.dash], "linewidth": 1.9 if each.scheme else 1.6}
    if each.shape == "steps":
        axes.step(each.x, each.y, where="post", **line, **style)
    else:
        axes.plot(each.x, each.y, **line, **style)


def _set_axis(axes: Any, letter: str, axis: Axis, chart: Chart) -> None:
    limits = getattr(axes, f"set_{letter}lim")
    if axis.log:
        getattr(axes, f"set_{letter}scale")("log")
    if axis.span is not None:
        limits(*axis.span)
    elif axis.zero and not axis.log:
        filled = any(each.shape == "area" for each in chart.series)
        top = max((float(np.max(getattr(each, letter))) for each in chart.series if len(each.x)), default=1.0)
        # A legend stands above the bars of a histogram, and names need room beside marks.
        limits(0, (1.32 if filled and letter == "y" else 1.05) * top or 1)
    if axis.ticks:
        getattr(axes, f"set_{letter}ticks")(*zip(*axis.ticks, strict=True))
    else:
        room = 200 if letter == "y" or not any(each.name and each.shape == "marks" for each in chart.series) else 20
        readable_ticks(axes, axis.log, y=letter == "y", room=room, whole=axis.whole)


def write_names(axes: Any, points: list[tuple[float, float]], names: list[str]) -> None:
    """Write each mark's name beside it."""
    axes.autoscale_view()  # else the limits are set when the picture is saved, which is too late
    places = axes.transAxes.inverted().transform(axes.transData.transform(points))
    for side, point, name in zip(name_sides(places.tolist(), names, LETTER), points, names, strict=True):
        right, up, ha, va = OFFSETS[side]
        axes.annotate(
            name, point, xytext=(right, up), textcoords="offset points", ha=ha, va=va, fontsize=9.5, color=INK,
            zorder=4, parse_math=False,
        )  # fmt: skip


def _name_curves(axes: Any, lines: Sequence[Series], rule: tuple[float, str] | None) -> None:
    """Write each curve's name beside it, where there is a free place; the legend has all names."""
    axes.autoscale_view()
    to_shares = axes.transData + axes.transAxes.inverted()
    paths = [dense_path(*to_shares.transform(np.column_stack([each.x, each.y])).T) for each in lines]
    ruled = np.empty((0, 2))
    if rule is not None:
        across = np.arange(0, 1, PATH_STEP)
        height = axes.transAxes.inverted().transform(axes.transData.transform((axes.get_xlim()[0], rule[0])))[1]
        ruled = np.column_stack([across, np.full(len(across), height)])
    places = line_names(paths, [each.name for each in lines], CURVE_LETTER, ruled)
    for each, path, place in zip(lines, paths, places, strict=True):
        if place is None:
            continue
        at, side = place
        right, up = NAME_GAPS[side]
        axes.text(
            path[at, 0] + right * NAME_GAP, path[at, 1] + up * NAME_GAP, each.name, transform=axes.transAxes,
            ha=("center", "left", "right")[right], va=("center", "bottom", "top")[up], fontsize=9.5, color=each.colour,
            zorder=4, parse_math=False,
        )  # fmt: skip


def say_empty(axes: Any, title: str, text: str) -> None:
    """Say in the middle of empty axes why there is nothing to see."""
    tidy(axes, title, "", "")
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=INK)
    axes.set(xticks=[], yticks=[])


def tidy(axes: Any, title: str, x: str, y: str) -> None:
    """Apply the common style of all pictures to axes."""
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")
    axes.tick_params(colors="#555555", labelsize=10)
    axes.grid(True, color=FAINT, linewidth=0.6, alpha=0.7)
    axes.set_axisbelow(True)


def readable_ticks(axes: Any, log: bool, *, y: bool = False, room: float = 200, whole: bool = False) -> None:
    """Label the x axis, or the y axis, with plain numbers, few enough to read.

    Args:
        axes: matplotlib's axes.
        log: whether the axis is logarithmic.
        y: label the y axis.
        room: ratio of the largest to the least value up to which 2 and 5 of every decade are labelled too.
        whole: label whole numbers only.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    axis = axes.yaxis if y else axes.xaxis
    if log:
        low, high = axes.get_ylim() if y else axes.get_xlim()
        # A span of less than two decades has too few powers of ten to be read from.
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < room else (1.0,), numticks=12))
        axis.set_minor_formatter(NullFormatter())
    else:
        axis.set_major_locator(MaxNLocator(6, integer=whole))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


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


def rendered(figure: Any, kind: str = "png") -> bytes:
    """Return a figure as PNG or SVG, without time stamp or version: the same runs give the same bytes."""
    sink = io.BytesIO()
    with warnings.catch_warnings():
        # Labels are the user's: a letter that the font lacks is drawn as a box, which is no reason to fail.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        figure.savefig(sink, format=kind, metadata={"Date": None} if kind == "svg" else {"Software": None})
    return sink.getvalue()


def save(figure: Any, path: Path) -> None:
    """Write a figure as PNG, wholly or not at all."""
    write_atomically(path, rendered(figure))


# -- the picture of a comparison -------------------------------------------------------------------------------------


def _draw_legend(figure: Any, comparison: Comparison, names: list[str], columns: int) -> Any:
    """Draw and return the legend below all axes, where no curve can pass underneath it."""
    from matplotlib.lines import Line2D

    found = looks(comparison)
    styles = [found[scheme.label] for scheme in comparison.schemes]
    handles: list[Any] = []
    for look in styles:
        handles.append(Line2D([], [], color=look.colour, linewidth=1.9))
        handles[-1].set_linestyle(DASHES[look.dash])
    placeholders = [f"scheme {position}" for position in range(len(names))]
    legend = figure.legend(handles, placeholders, loc="outside lower center", ncols=columns, frameon=False, fontsize=10)
    # Set afterwards: the constructor hides labels that begin with an underscore, and reads dollars as mathematics.
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(name)
    return legend


def _legend_text(scheme: SchemeSummary, comparison: Comparison) -> str:
    label = numbers.shortened(scheme.label, 40)
    facts = []
    if comparison.target is not None:
        if scheme.time_to_target is None or not scheme.always_reached:
            facts.append(missed(scheme).text)
        else:
            facts.append(numbers.seconds(scheme.time_to_target.mean))
    if scheme.diverged:
        facts.append(f"{scheme.diverged} of {scheme.runs} diverged")
    return f"{label}: {', '.join(facts)}" if facts else label


def _legend_columns(names: list[str]) -> int:
    """As many as fit, evenly filled: a letter takes about a fourteenth of an inch, the line before it half an inch."""
    fitting = max(1, int(WIDTH / (max(len(name) for name in names) / 14 + 0.7)))
    rows = -(-len(names) // fitting)
    return -(-len(names) // rows)
