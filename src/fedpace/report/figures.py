"""The page's figures as plotly's JSON: plain dictionaries, so that none of its figure classes is needed.

Colours of text and grid are left to the page's script, which knows whether the reader's screen is light or dark.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedpace.records.run import RunRecord
from fedpace.report import numbers
from fedpace.report.curves import Curve, by_scheme, cohort_over_rounds, left_edge, metric_over_rounds, metric_over_time
from fedpace.report.style import Look, delays_of, histogram, log_time, looks
from fedpace.report.tables import Comparison, SchemeSummary

Figure = dict[str, Any]


def metric_figure(runs: Sequence[RunRecord], comparison: Comparison, *, over: str) -> Figure:
    """Return the metric over virtual `time` or over `rounds`."""
    in_time = over == "time"
    merge: Callable[[Sequence[RunRecord]], Curve | None] = metric_over_time if in_time else metric_over_rounds
    curves = [(scheme, merge(members)) for scheme, members in by_scheme(runs, comparison)]
    logarithmic = in_time and log_time(runs, comparison)
    edge = left_edge([curve for _, curve in curves if curve]) if logarithmic else 0.0
    traces: list[Figure] = []
    style = looks(comparison)
    unit = "%{x:,.4~r} s" if in_time else "round %{x:.0f}"
    for scheme, curve in curves:
        if curve is not None:
            hover = f"%{{y:.4~r}} at {unit}"
            look, end = style[scheme.label], comparison.target is not None
            traces += _band_and_line(scheme, curve, look, hover, edge, end=end, at=_arrival(scheme, in_time))
    layout = _layout("virtual time in seconds" if in_time else "rounds", _text(comparison.metric))
    _make_room(layout, comparison)
    if logarithmic:
        layout["xaxis"] |= _log_axis(edge, max(float(curve.x[-1]) for _, curve in curves if curve))
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


def _arrival(scheme: SchemeSummary, in_time: bool) -> float | None:
    """Where a scheme that always reached its target held it, in seconds or rounds."""
    if not scheme.always_reached or scheme.time_to_target is None:
        return None
    return scheme.time_to_target.mean if in_time else scheme.rounds_to_target


def times_figure(comparison: Comparison) -> Figure:
    """Return the time to target of every seed, and where runs gave up."""
    style = looks(comparison)
    traces: list[Figure] = []
    for row, scheme in enumerate(comparison.schemes):
        colour = style[scheme.label].colour
        name = _name(scheme)
        arrived = [result for result in scheme.results if result.seconds is not None]
        late = [result for result in scheme.results if result.seconds is None]
        crossed = [result for result in scheme.results if result.first_seconds is not None]
        if comparison.hold > 1 and crossed:
            traces.append(
                {"type": "scatter", "mode": "markers", "name": name, "y": [row] * len(crossed),
                 "x": [result.first_seconds for result in crossed], "cliponaxis": False,
                 "marker": {"color": colour, "size": 8, "symbol": "line-ns-open", "opacity": 0.85},
                 "customdata": [result.seed for result in crossed],
                 "hovertemplate": f"seed %{{customdata}}: first met at %{{x:,.4~r}} s<extra>{name}</extra>"}
            )  # fmt: skip
        for results, symbol, verdict in ((arrived, "circle", "reached at"), (late, "x", "not reached until")):
            if not results:
                continue
            marker = {"color": colour, "size": 11, "symbol": symbol, "opacity": 0.85}
            traces.append(
                {"type": "scatter", "mode": "markers", "name": name, "y": [row] * len(results),
                 "x": [result.ended if result.seconds is None else result.seconds for result in results],
                 "marker": marker, "cliponaxis": False, "customdata": [result.seed for result in results],
                 "hovertemplate": f"seed %{{customdata}}: {verdict} %{{x:,.4~r}} s<extra>{name}</extra>"}
            )  # fmt: skip
    layout = _layout("virtual time in seconds", "", legend=False)
    ends = [r.ended for scheme in comparison.schemes for r in scheme.results if r.ended > 0]
    wide = bool(ends) and max(ends) > 10 * min(ends) and all(r > 0 for r in _drawn_times(comparison))
    layout["xaxis"] |= {"type": "log"} if wide else {"rangemode": "tozero"}
    layout["yaxis"] |= {
        "range": [len(comparison.schemes) - 0.5, -0.5],
        "tickvals": list(range(len(comparison.schemes))),
        "ticktext": [_text(numbers.shortened(scheme.label, 30)) for scheme in comparison.schemes],
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
    layout = _layout("round", "clients chosen")
    _make_room(layout, comparison)
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
    layout = _layout("mean seconds of a client's round", "clients")
    if logarithmic:
        layout["xaxis"] |= _log_axis(float(edges[0]), float(edges[-1]))
    elif len(counts) == 1:
        layout["xaxis"]["range"] = [2 * float(edges[0]) - float(edges[1]), 2 * float(edges[1]) - float(edges[0])]
    _count_axis(layout, top)
    return {"data": traces, "layout": layout}


def _band_and_line(
    scheme: SchemeSummary, curve: Curve, look: Look, hover: str, edge: float, *, end: bool, at: float | None = None
) -> list[Figure]:
    """A step line over the seeds' mean, above a band from their least to their greatest; `at`: where it arrived."""
    name = _name(scheme)
    x = np.maximum(curve.x, edge).tolist()
    # A line through one point cannot be seen.
    mode = "lines" if len(x) > 1 else "markers"
    shared: Figure = {"type": "scatter", "x": x, "legendgroup": name}
    line = {"color": look.colour, "shape": "hv"}
    traces: list[Figure] = []
    if scheme.runs > 1:
        bare = {"mode": "lines", "line": line | {"width": 0}, "hoverinfo": "skip", "showlegend": False}
        traces.append(shared | bare | {"y": curve.low.tolist()})
        traces.append(shared | bare | {"y": curve.high.tolist(), "fill": "tonexty", "fillcolor": _faint(look.colour)})
    traces.append(
        shared
        | {"mode": mode, "y": curve.mean.tolist(), "name": name, "line": line | {"width": 2.2, "dash": look.dash},
           "marker": {"color": look.colour},
           "hovertemplate": f"{hover}<extra>{name}</extra>"}
    )  # fmt: skip
    if end:
        symbol = "circle" if scheme.always_reached else "x"
        end_x, end_y = curve.arrival(at)
        last = {
            "x": [max(end_x, edge)],
            "y": [end_y],
            "marker": {"color": look.colour, "size": 9, "symbol": symbol},
        }
        traces.append(shared | {"mode": "markers", "hoverinfo": "skip", "showlegend": False} | last)
    return traces


def _layout(x: str, y: str, *, legend: bool = True) -> Figure:
    return {
        "autosize": True,
        "height": 400,
        "margin": {"l": 60, "r": 16, "t": 12, "b": 48},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 13},
        "xaxis": {"title": {"text": x}, "zeroline": False, "automargin": True, "tickformat": ",.10~g"},
        "yaxis": {"title": {"text": y}, "zeroline": False, "automargin": True},
        "showlegend": legend,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom"},
        "hovermode": "closest",
    }


def _name(scheme: SchemeSummary) -> str:
    return _text(scheme.label)


def _text(text: str) -> str:
    """Text that plotly shows as it is: it reads a subset of HTML, `%{x}` as a value, and dollars as mathematics."""
    return html.escape(text).replace("%", "&#37;").replace("$", "&#36;")


def _log_axis(low: float, high: float) -> Figure:
    """Label 1, 2 and 5 of every decade of a short span: left alone, plotly writes 2, 3 ... 9 one over the other."""
    return {"type": "log"} | ({"dtick": "D2"} if high < 2000 * low else {})


def _count_axis(layout: Figure, top: float) -> None:
    layout["yaxis"]["rangemode"] = "tozero"
    if top <= 8:
        layout["yaxis"]["dtick"] = 1  # there is no half client


def _make_room(layout: Figure, comparison: Comparison) -> None:
    """Grow with the legend, which would otherwise take its lines from the curves."""
    letters = sum(len(scheme.label) + 8 for scheme in comparison.schemes)
    layout["height"] += 20 * (letters // 110)


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.16)"


def _drawn_times(comparison: Comparison) -> list[float]:
    results = [result for scheme in comparison.schemes for result in scheme.results]
    firsts = [result.first_seconds for result in results if result.first_seconds is not None]
    return firsts + [result.ended if result.seconds is None else result.seconds for result in results]
