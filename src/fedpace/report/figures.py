"""The page's figures as plotly JSON, in plain dictionaries, so that plotly's Python classes are not needed.

The page's script sets the colours of text and grid, because it knows whether the screen is light or dark.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpace.records.run import RunRecord
from fedpace.report import numbers
from fedpace.report.curves import (
    Curve,
    by_scheme,
    cohort_over_rounds,
    left_edge,
    metric_over_rounds,
    metric_over_time,
    metric_over_work,
)
from fedpace.report.style import Look, delays_of, histogram, log_time, looks
from fedpace.report.tables import Comparison, SchemeSummary

Figure = dict[str, Any]


@dataclass(frozen=True)
class Axis:
    """What a metric is drawn over."""

    name: str
    title: str
    unit: str
    """Of a point's hover text."""
    merge: Callable[[Sequence[RunRecord]], Curve | None]
    arrival: Callable[[SchemeSummary], float | None]
    """Where a scheme that always reached its target held it."""


UNEVEN = 4
"""So many times as many rounds as the usual scheme's need an axis that leaves room for both."""
STOPPED = "triangle-right-open"
"""The mark of a run that was stopped at an easier target: its time lies to the right, nobody knows where."""
AXES = (
    Axis("time", "{clock} in seconds", "%{x:,.4~r} s", metric_over_time,
         lambda scheme: None if scheme.time_to_target is None else scheme.time_to_target.mean),
    Axis("rounds", "rounds", "round %{x:.0f}", metric_over_rounds, lambda scheme: scheme.rounds_to_target),
    Axis("work", "client work in seconds, all clients together", "%{x:,.4~r} s of client work", metric_over_work,
         lambda scheme: None if scheme.cost.work is None else scheme.cost.work.mean),
)  # fmt: skip


def metric_figure(runs: Sequence[RunRecord], comparison: Comparison, *, over: str) -> Figure | None:
    """Return the metric over virtual `time`, `rounds` or client `work`; None where no run says."""
    axis = next(axis for axis in AXES if axis.name == over)
    curves = [(scheme, axis.merge(members)) for scheme, members in by_scheme(runs, comparison)]
    drawn = [curve for _, curve in curves if curve is not None]
    if over == "work" and not drawn:
        return None
    logarithmic = over != "rounds" and log_time(runs, comparison) and any((curve.x > 0).any() for curve in drawn)
    edge = left_edge(drawn) if logarithmic else 0.0
    traces: list[Figure] = []
    style = looks(comparison)
    for scheme, curve in curves:
        if curve is not None:
            hover = f"%{{y:.4~r}} at {axis.unit}"
            look, end = style[scheme.label], comparison.target is not None
            at = axis.arrival(scheme) if scheme.always_reached else None
            traces += _band_and_line(scheme, curve, look, hover, edge, end=end, at=at)
    layout = plain_layout(axis.title.format(clock=comparison.clock), escaped(comparison.metric))
    if logarithmic:
        layout["xaxis"] |= log_axis(edge, max(float(curve.x[-1]) for curve in drawn))
    if comparison.target is not None:
        layout["shapes"] = [
            {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": comparison.target, "y1": comparison.target,
             "line": {"dash": "dash", "width": 1.2}}
        ]  # fmt: skip
        layout["annotations"] = [
            {"text": f"target {numbers.given(comparison.target)}", "xref": "paper", "x": 0, "xanchor": "left",
             "y": comparison.target, "yanchor": "bottom", "showarrow": False}
        ]  # fmt: skip
    return {"data": traces, "layout": layout}


def times_figure(comparison: Comparison) -> Figure:
    """Return the time to target of every seed, and where runs gave up."""
    style = looks(comparison)
    traces: list[Figure] = []
    for row, scheme in enumerate(comparison.schemes):
        colour = style[scheme.label].colour
        name = escaped(scheme.label)
        arrived = [result for result in scheme.results if result.seconds is not None]
        late = [result for result in scheme.results if result.seconds is None and not result.censored]
        stopped = [result for result in scheme.results if result.censored]
        crossed = [result for result in scheme.results if result.first_seconds is not None]
        if comparison.hold > 1 and crossed:
            traces.append(
                {"type": "scatter", "mode": "markers", "name": name, "legendgroup": name, "y": [row] * len(crossed),
                 "x": [result.first_seconds for result in crossed], "cliponaxis": False,
                 "marker": {"color": colour, "size": 8, "symbol": "line-ns-open", "opacity": 0.85},
                 "customdata": [result.seed for result in crossed],
                 "hovertemplate": f"seed %{{customdata}}: first met at %{{x:,.4~r}} s<extra>{name}</extra>"}
            )  # fmt: skip
        for results, symbol, verdict in (
            (arrived, "circle", "reached at"),
            (late, "x", "not reached until"),
            (stopped, STOPPED, "stopped at an easier target, at"),
        ):
            if not results:
                continue
            marker = {"color": colour, "size": 11, "symbol": symbol, "opacity": 0.85}
            traces.append(
                {"type": "scatter", "mode": "markers", "name": name, "legendgroup": name, "y": [row] * len(results),
                 "x": [result.ended if result.seconds is None else result.seconds for result in results],
                 "marker": marker, "cliponaxis": False, "customdata": [result.seed for result in results],
                 "hovertemplate": f"seed %{{customdata}}: {verdict} %{{x:,.4~r}} s<extra>{name}</extra>"}
            )  # fmt: skip
    layout = plain_layout(f"{comparison.clock} in seconds", "")
    ends = [r.ended for scheme in comparison.schemes for r in scheme.results if r.ended > 0]
    wide = bool(ends) and max(ends) > 10 * min(ends) and all(r > 0 for r in _drawn_times(comparison))
    shown = _drawn_times(comparison)
    layout["xaxis"] |= log_axis(min(shown), max(shown)) if wide else {"rangemode": "tozero"}
    layout["yaxis"] |= {
        "range": [len(comparison.schemes) - 0.5, -0.5],
        "tickvals": list(range(len(comparison.schemes))),
        "ticktext": [escaped(numbers.shortened(scheme.label, 30)) for scheme in comparison.schemes],
    }
    layout["height"] = 130 + 46 * len(comparison.schemes)
    return {"data": traces, "layout": layout}


def cohort_figure(runs: Sequence[RunRecord], comparison: Comparison) -> Figure:
    """Return how many clients were chosen, round by round."""
    style = looks(comparison)
    traces: list[Figure] = []
    for scheme, members in by_scheme(runs, comparison):
        curve = cohort_over_rounds(members)
        if curve is not None:
            hover = "%{y:.4~r} clients in round %{x:.0f}"
            traces += _band_and_line(scheme, curve, style[scheme.label], hover, 0.0, end=False)
    layout = plain_layout("round", "clients chosen")
    lengths = sorted(max(trace["x"]) for trace in traces if trace.get("name"))
    if lengths and lengths[-1] > UNEVEN * max(lengths[len(lengths) // 2], 1):
        layout["xaxis"] |= log_axis(1.0, lengths[-1])  # a scheme with many short rounds would leave the others no room
    _count_axis(layout, max((max(trace["y"]) for trace in traces), default=0.0))
    return {"data": traces, "layout": layout}


def delays_figure(runs: Sequence[RunRecord]) -> Figure | None:
    """Return the histogram of the clients' delays; None when none were recorded."""
    delays = delays_of(runs)
    if not len(delays):
        return None
    counts, edges, logarithmic = histogram(delays)
    top = float(counts.max())
    # Drawn as one outline: bars have no widths of their own on a logarithmic axis.
    x = np.repeat(edges, 2)
    y = np.concatenate([[0.0], np.repeat(counts, 2), [0.0]])
    traces: list[Figure] = [
        {"type": "scatter", "mode": "lines", "x": x.tolist(), "y": y.tolist(), "fill": "tozeroy", "hoverinfo": "skip",
         "line": {"color": "#8896a5", "width": 1}, "fillcolor": "rgba(136,150,165,0.55)", "showlegend": False}
    ]  # fmt: skip
    for share, name, dash in ((0.5, "median", "solid"), (0.9, "90 % of clients within", "dash")):
        value = float(np.quantile(delays, share))
        traces.append(
            {"type": "scatter", "mode": "lines", "x": [value, value], "y": [0, top * 1.06], "hoverinfo": "name",
             "name": f"{name} {numbers.seconds(value)}", "line": {"dash": dash, "width": 2}, "meta": "ink"}
        )  # fmt: skip
    layout = plain_layout("mean seconds of a client's round", "clients", legend=True)
    if logarithmic:
        layout["xaxis"] |= log_axis(float(edges[0]), float(edges[-1]))
    elif len(counts) == 1:
        layout["xaxis"]["range"] = [2 * float(edges[0]) - float(edges[1]), 2 * float(edges[1]) - float(edges[0])]
    _count_axis(layout, top)
    return {"data": traces, "layout": layout}


def _band_and_line(
    scheme: SchemeSummary, curve: Curve, look: Look, hover: str, edge: float, *, end: bool, at: float | None = None
) -> list[Figure]:
    """A step line over the seeds' mean, above a band from their least to their greatest; `at`: where it arrived."""
    name = escaped(scheme.label)
    x = compact(np.maximum(curve.x, edge))
    # A line through one point cannot be seen.
    mode = "lines" if len(x) > 1 else "markers"
    shared: Figure = {"type": "scatter", "x": x, "legendgroup": name}
    line = {"color": look.colour, "shape": "hv"}
    traces: list[Figure] = []
    if scheme.runs > 1:
        bare = {"mode": "lines", "line": line | {"width": 0}, "hoverinfo": "skip", "showlegend": False}
        traces.append(shared | bare | {"y": compact(curve.low)})
        traces.append(shared | bare | {"y": compact(curve.high), "fill": "tonexty", "fillcolor": _faint(look.colour)})
    traces.append(
        shared
        | {"mode": mode, "y": compact(curve.mean), "name": name, "line": line | {"width": 2.2, "dash": look.dash},
           "marker": {"color": look.colour},
           "hovertemplate": f"{hover}<extra>{name}</extra>"}
    )  # fmt: skip
    if end:
        symbol = "circle" if scheme.always_reached else STOPPED if scheme.censored else "x"
        end_x, end_y = curve.arrival(at)
        last = {
            "x": [max(end_x, edge)],
            "y": [end_y],
            "marker": {"color": look.colour, "size": 9, "symbol": symbol},
        }
        traces.append(shared | {"mode": "markers", "hoverinfo": "skip", "showlegend": False} | last)
    return traces


def plain_layout(x: str, y: str, *, legend: bool = False) -> Figure:
    """Return a layout; which colours stand for which schemes is said once, above all figures."""
    return {
        "autosize": True,
        "height": 400,
        "margin": {"l": 60, "r": 16, "t": 12, "b": 48},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 13},
        "xaxis": {"title": {"text": x}, "zeroline": False, "automargin": True, "tickformat": ",.10~g"},
        "yaxis": {"title": {"text": y, "standoff": 12}, "zeroline": False, "automargin": True},
        "showlegend": legend,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom"},
        "hovermode": "closest",
    }


def compact(values: Iterable[float]) -> list[float]:
    """Return numbers with as many digits as a screen can show: the page carries tens of thousands of them."""
    return [float(f"{value:.5g}") for value in values]


def escaped(text: str) -> str:
    """Text that plotly shows as it is: it reads a subset of HTML, `%{x}` as a value, and dollars as mathematics."""
    return html.escape(text, quote=False).replace("%", "&#37;").replace("$", "&#36;")


def log_axis(low: float, high: float) -> Figure:
    """Label 1, 2 and 5 of every decade of a short span: left alone, plotly writes 2, 3 ... 9 one over the other."""
    return {"type": "log"} | ({"dtick": "D2"} if high < 2000 * low else {})


def _count_axis(layout: Figure, top: float) -> None:
    layout["yaxis"]["rangemode"] = "tozero"
    if top <= 8:
        layout["yaxis"]["dtick"] = 1  # there is no half client


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.16)"


def _drawn_times(comparison: Comparison) -> list[float]:
    results = [result for scheme in comparison.schemes for result in scheme.results]
    firsts = [result.first_seconds for result in results if result.first_seconds is not None]
    return firsts + [result.ended if result.seconds is None else result.seconds for result in results]
