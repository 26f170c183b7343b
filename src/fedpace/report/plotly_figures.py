"""Turns charts into plotly's JSON, as plain dictionaries, so that plotly's Python classes are not needed.

The page's script sets the colours of text and grid, because it knows whether the screen is light or dark. Names stand
beside lines and marks where they cover least; `picture` places its names with the same functions.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace.report.figures import MAX_NAMED, Axis, Chart, Series

PlotlyFigure = dict[str, Any]
Side = Literal["top", "bottom", "right", "left"]
SIDES = {"top": "top center", "bottom": "bottom center", "right": "middle right", "left": "middle left"}
"""Sides of a mark, by plotly's names."""
Corner = Literal["top left", "top right", "bottom left", "bottom right"]
"""Places beside a curve that names take too, by plotly's names: a rising curve leaves its upper left free."""
LETTER = 0.0085
"""Width of a letter of a name, as a share of the figure's width: 8 of 940 pixels."""
NAME_GAP = 0.008
"""Distance between a curve and its name, as a share of the axes."""
NAME_GAPS: dict[Side | Corner, tuple[int, int]] = {
    "top": (0, 1), "bottom": (0, -1), "right": (1, 0), "left": (-1, 0), "top left": (-1, 1), "top right": (1, 1),
    "bottom left": (-1, -1), "bottom right": (1, -1),
}  # fmt: skip
"""Place of a name beside a curve -> the direction in which it is away from the curve: right and up."""
PATH_STEP = 0.008
"""Distance of the points of a curve that its name should not cover, as a share of the axes."""


def plotly_figure(chart: Chart) -> PlotlyFigure:
    """Return a chart as plotly's `data` and `layout`."""
    traces = [_traces(each) for each in chart.series]
    _name_marks(chart, [each[-1] for each in traces])
    data = [trace for each in traces for trace in each] + _line_labels(chart)
    layout = plain_layout(chart)
    if chart.rule is not None:
        value, text = chart.rule
        layout["shapes"] = [
            {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": value, "y1": value,
             "line": {"dash": "dash", "width": 1.2}}
        ]  # fmt: skip
        layout["annotations"] = [
            {"text": escaped(text), "xref": "paper", "x": 0, "xanchor": "left", "y": value, "yanchor": "bottom",
             "showarrow": False}
        ]  # fmt: skip
    return {"data": data, "layout": layout}


def plain_layout(chart: Chart) -> PlotlyFigure:
    """Return the layout of a chart; the legend of the schemes stands once, above all figures."""
    return {
        "autosize": True,
        "height": chart.height,
        "margin": {"l": 60, "r": 16, "t": 12, "b": 48},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 13},
        "xaxis": {"tickformat": ",.10~g"} | _axis(chart, "x", chart.x),
        "yaxis": _axis(chart, "y", chart.y),
        "showlegend": any(each.legend for each in chart.series),
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom"},
        "hovermode": "closest",
    }


def _axis(chart: Chart, letter: str, axis: Axis) -> PlotlyFigure:
    title: PlotlyFigure = {"text": escaped(axis.title)} | ({"standoff": 12} if letter == "y" else {})
    found: PlotlyFigure = {"title": title, "zeroline": False, "automargin": True}
    values = [getattr(each, letter) for each in chart.series if len(each.x)]
    if axis.log:
        positive = np.concatenate(values) if values else np.ones(1)
        positive = positive[positive > 0]
        low, high = (float(positive.min()), float(positive.max())) if positive.size else (1.0, 1.0)
        # Left alone, plotly writes 2, 3 ... 9 of a short span one over the other.
        found |= {"type": "log", "tickformat": ",.10~g"} | ({"dtick": "D2"} if high < 2000 * low else {})
    elif axis.zero:
        found["rangemode"] = "tozero"
    if axis.whole and not axis.log and max((float(each.max()) for each in values), default=0.0) <= 10:
        found["dtick"] = 1
    if axis.percent:
        found["tickformat"] = ".0%"
    if axis.span is not None:
        found["range"] = list(axis.span)
    if axis.ticks:
        found |= {"tickvals": [value for value, _ in axis.ticks], "ticktext": [escaped(text) for _, text in axis.ticks]}
    return found


def _traces(each: Series) -> list[PlotlyFigure]:
    """Return the traces of a series, the line or the marks last."""
    group = escaped(each.scheme)
    trace: PlotlyFigure = {"type": "scatter", "x": compact(each.x), "y": compact(each.y), "legendgroup": group}
    if each.shape == "area":
        fill = {"line": {"color": each.colour, "width": 1}, "fill": "tozeroy", "fillcolor": _faint(each.colour, 0.55)}
        return [trace | {"mode": "lines", "hoverinfo": "skip", "showlegend": False} | fill]
    found: list[PlotlyFigure] = []
    shape = {"shape": "hv"} if each.shape == "steps" else {}
    if each.low is not None and each.high is not None:
        edge = {"mode": "lines", "line": {"color": each.colour, "width": 0} | shape, "hoverinfo": "skip"}
        found.append(trace | edge | {"y": compact(each.low), "showlegend": False})
        band = {"y": compact(each.high), "showlegend": False, "fill": "tonexty", "fillcolor": _faint(each.colour, 0.16)}
        found.append(trace | edge | band)
    trace |= {"name": group or escaped(each.legend), "showlegend": bool(each.legend)}
    drawn = [] if each.shape == "marks" or len(each.x) == 1 else ["lines"]
    if each.shape != "marks":
        trace["line"] = {"dash": each.dash, "width": 2.2 if each.scheme else 2} | shape
        trace |= {"meta": "line" if each.scheme else "ink"}
    if each.symbol:
        drawn.append("markers")
        trace["marker"] = {"color": each.colour, "size": each.size, "symbol": each.symbol, "opacity": each.opacity}
        if each.shape == "marks":
            trace |= {"cliponaxis": False, "meta": "marks"}
    if each.colour and "line" in trace:
        trace["line"]["color"] = each.colour
    if each.seeds:
        trace["customdata"] = list(each.seeds)
    hover = {"hovertemplate": f"{each.hover}<extra>{group}</extra>"} if each.hover else {"hoverinfo": "name"}
    if not each.hover and each.shape == "marks":
        hover = {"hoverinfo": "skip"}
    return [*found, trace | {"mode": "+".join(drawn)} | hover]


def _name_marks(chart: Chart, traces: list[PlotlyFigure]) -> None:
    """Write the names of marks beside them, where they cover least."""
    named = [number for number, each in enumerate(chart.series) if each.name and each.shape == "marks"]
    if not named or len(named) > MAX_NAMED:
        return
    x, y = (_shares(chart, letter, axis) for letter, axis in (("x", chart.x), ("y", chart.y)))
    places = [(float(x[number][0]), float(y[number][0])) for number in named]
    names = [chart.series[number].name for number in named]
    for number, side in zip(named, name_sides(places, names, LETTER), strict=True):
        traces[number] |= {
            "mode": "markers+text",
            "text": [escaped(chart.series[number].name)],
            "textposition": SIDES[side],
        }


def _line_labels(chart: Chart) -> list[PlotlyFigure]:
    """Return the names of curves as texts beside them, where they cover no curve."""
    named = [number for number, each in enumerate(chart.series) if each.name and each.shape != "marks"]
    if not named or len(named) > MAX_NAMED:
        return []
    x, y = (_shares(chart, letter, axis) for letter, axis in (("x", chart.x), ("y", chart.y)))
    paths = [dense_path(x[number], y[number], steps=chart.series[number].shape == "steps") for number in named]
    across = np.arange(0, 1, PATH_STEP) if chart.rule is not None else np.empty(0)
    high = _share(chart, "y", chart.y, np.full(len(across), chart.rule[0] if chart.rule is not None else 0.0))
    places = line_names(paths, [chart.series[number].name for number in named], LETTER, np.column_stack([across, high]))
    found = []
    for number, path, place in zip(named, paths, places, strict=True):
        if place is None:
            continue
        each, (at, side) = chart.series[number], place
        right, up = NAME_GAPS[side]
        x_share, y_share = path[at, 0] + right * NAME_GAP, path[at, 1] + up * NAME_GAP
        point = {"x": _value(chart, "x", chart.x, x_share), "y": _value(chart, "y", chart.y, y_share)}
        found.append(
            {"type": "scatter", "mode": "text", "x": compact([point["x"]]), "y": compact([point["y"]]),
             "text": [escaped(each.name)], "textposition": SIDES.get(side, side), "legendgroup": escaped(each.scheme),
             "hoverinfo": "skip", "showlegend": False, "cliponaxis": False, "meta": "label"}
        )  # fmt: skip
    return found


def dense_path(x: FloatArray, y: FloatArray, *, steps: bool = True) -> FloatArray:
    """Return a curve as dense points (x, y); with `steps`, it goes along and then up or down to each point."""
    found = [(x[0], y[0])]
    for number in range(1, len(x)):
        away = abs(x[number] - x[number - 1]), abs(y[number] - y[number - 1])
        counts = [2 + int(each / PATH_STEP) for each in (away if steps else (max(away), max(away)))]
        along = np.linspace(x[number - 1], x[number], counts[0])[1:]
        up = np.linspace(y[number - 1], y[number], counts[1])[1:]
        if steps:
            found += [(each, y[number - 1]) for each in along] + [(x[number], each) for each in up]
        else:
            found += list(zip(along, up, strict=True))
    points = np.array(found, dtype=np.float64)
    # Points that are closer than a pixel count once: a curve with many short steps is not heavier than another.
    return points[np.sort(np.unique((points / PATH_STEP * 2).round(), axis=0, return_index=True)[1])]


def _shares(chart: Chart, letter: str, axis: Axis) -> list[FloatArray]:
    """Return the positions of all points of each series, as shares of the axis."""
    return [_share(chart, letter, axis, np.asarray(getattr(each, letter), dtype=np.float64)) for each in chart.series]


def _share(chart: Chart, letter: str, axis: Axis, values: FloatArray) -> FloatArray:
    """Return the positions of values, as shares of the axis."""
    low, high = _limits(chart, letter, axis)
    pad = _padding(chart, letter)
    placed = np.log(np.maximum(values, 1e-300)) if axis.log else values
    return (placed - low) / ((high - low) or 1.0) * (1 - 2 * pad) + pad


def _value(chart: Chart, letter: str, axis: Axis, share: float) -> float:
    """Return the value at a share of the axis."""
    low, high = _limits(chart, letter, axis)
    pad = _padding(chart, letter)
    value = low + (share - pad) / (1 - 2 * pad) * ((high - low) or 1.0)
    return float(np.exp(value)) if axis.log else float(value)


def _padding(chart: Chart, letter: str) -> float:
    """Return the share of an axis that plotly leaves free at each end: curves fill the whole width."""
    return 0.0 if letter == "x" and any(each.shape == "steps" for each in chart.series) else 0.05


def _limits(chart: Chart, letter: str, axis: Axis) -> tuple[float, float]:
    """Return the least and the largest value of an axis, logarithms if it is logarithmic."""
    every = np.concatenate([np.asarray(getattr(each, letter), dtype=np.float64) for each in chart.series])
    if axis.log:
        every = np.log(np.maximum(every, 1e-300))
    return (0.0 if axis.zero and not axis.log else float(every.min())), float(every.max())


def compact(values: Iterable[float]) -> list[float]:
    """Return numbers with as many digits as a screen can show: the page carries tens of thousands of them."""
    return [float(f"{value:.5g}") for value in values]


def escaped(text: str) -> str:
    """Return text that plotly shows unchanged: it reads a subset of HTML, `%{x}` as a value, dollars as mathematics."""
    return html.escape(text, quote=False).replace("%", "&#37;").replace("$", "&#36;")


def _faint(colour: str, opacity: float) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


# -- names beside marks ----------------------------------------------------------------------------------------------

MARK = 0.02
"""Half of a mark's width and height, as a share of the axes."""
MAX_ANCHORS = 80
"""Most points of a curve that are tried for its name."""
NAME_APART = 0.03
"""Distance between curves below which a name could belong to either, as a share of the axes."""
MAX_COVERED = 0.03
"""Cost of a place above which a curve gets no name; each point of another curve that is close costs 0.01."""
COVERING = 100.0
"""Cost of a covered area, where a length outside of the axes costs 1: names may stand out, but not on a mark."""
_Box = tuple[float, float, float, float]
"""Left, low, right and high, as shares of the axes."""


def line_names(
    paths: Sequence[FloatArray], names: Sequence[str], letter: float, ruled: FloatArray
) -> list[tuple[int, Side | Corner] | None]:
    """Return for each curve the point and the side where its name covers no curve and no earlier name.

    Args:
        paths: (points, 2) positions along each curve, dense, as shares of the axes.
        names: names of the curves.
        letter: width of a letter, as a share of the axes' width.
        ruled: (points, 2) positions of other lines that no name may cover.

    None if there is no free place: then the legend has to tell.
    """
    taken: list[_Box] = []
    found: list[tuple[int, Side | Corner] | None] = []
    every = np.vstack([*paths, ruled])
    for number, (path, name) in enumerate(zip(paths, names, strict=True)):
        others = np.vstack([np.empty((0, 2)), *(other for place, other in enumerate(paths) if place != number)])
        best: tuple[float, int, Side | Corner, _Box] | None = None
        # From the end on: readers look for a name there, and curves are apart there that began together.
        for place in range(len(path) - 1, -1, -max(1, len(path) // MAX_ANCHORS)):
            x, y = float(path[place, 0]), float(path[place, 1])
            # Where curves are close to each other, a name could belong to any of them.
            close = int((np.abs(others - (x, y)).max(axis=1) < NAME_APART).sum())
            wide = letter * len(name)
            for side, box in (_name_boxes(x, y, wide, NAME_GAP) | _corner_boxes(x, y, wide, NAME_GAP)).items():
                left, low, right, high = box
                if min(left, low) < 0 or max(right, high) > 1:  # not beyond the axes
                    continue
                if ((every > (left, low)) & (every < (right, high))).all(axis=1).any():  # no line through a name
                    continue
                cost = 0.01 * close + _covered(box, taken)
                if best is None or cost < best[0]:
                    best = (cost, place, side, box)
        if best is None or best[0] > MAX_COVERED:
            found.append(None)
            continue
        left, low, right, high = best[3]
        taken.append((left - letter, low, right + letter, high))  # else two names read as one
        found.append((best[1], best[2]))
    return found


def _name_boxes(x: float, y: float, wide: float, gap: float = 0.03) -> dict[Side, _Box]:
    """Return the box of a name of this width on each side of a point, at a distance of `gap`."""
    return {
        "top": (x - wide / 2, y + gap, x + wide / 2, y + gap + 0.04),
        "bottom": (x - wide / 2, y - gap - 0.04, x + wide / 2, y - gap),
        "right": (x + gap, y - 0.02, x + gap + wide, y + 0.02),
        "left": (x - gap - wide, y - 0.02, x - gap, y + 0.02),
    }


def _corner_boxes(x: float, y: float, wide: float, gap: float) -> dict[Corner, _Box]:
    """Return the box of a name of this width at each corner of a point."""
    above, below = (y + gap, y + gap + 0.04), (y - gap - 0.04, y - gap)
    return {
        "top left": (x - gap - wide, above[0], x - gap, above[1]),
        "bottom right": (x + gap, below[0], x + gap + wide, below[1]),
        "top right": (x + gap, above[0], x + gap + wide, above[1]),
        "bottom left": (x - gap - wide, below[0], x - gap, below[1]),
    }


def name_sides(places: Sequence[tuple[float, float]], names: Sequence[str], letter: float) -> list[Side]:
    """Return on which side of its mark each name is written: where it covers least of other marks and earlier names.

    Args:
        places: positions of the marks, as shares of the axes.
        names: names of the marks.
        letter: width of a letter, as a share of the axes' width.
    """
    taken: list[_Box] = [(x - MARK, y - MARK, x + MARK, y + MARK) for x, y in places]
    found: list[Side] = []
    for (x, y), name in zip(places, names, strict=True):
        side, box = min(_name_boxes(x, y, letter * len(name)).items(), key=lambda entry: _covered(entry[1], taken))
        taken.append(box)
        found.append(side)
    return found


def _covered(box: _Box, taken: list[_Box]) -> float:
    """Return how much of a box is covered by others or lies outside of the axes, which is less bad."""
    left, low, right, high = box
    outside = max(0.0, -left) + max(0.0, right - 1.0) + max(0.0, -low) + max(0.0, high - 1.0)
    over = [
        max(0.0, min(right, other[2]) - max(left, other[0])) * max(0.0, min(high, other[3]) - max(low, other[1]))
        for other in taken
    ]
    return outside + COVERING * sum(over)
