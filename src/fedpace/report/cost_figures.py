"""The page's figures of costs other than time, and of results by client speed, as plotly JSON."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpace.records.run import RunRecord
from fedpace.report import numbers
from fedpace.report.cohort_map import participation
from fedpace.report.curves import by_scheme
from fedpace.report.figures import Figure, compact, escaped, log_axis, plain_layout
from fedpace.report.placing import NAMED, sides
from fedpace.report.style import looks
from fedpace.report.tables import Comparison

SYMBOLS = {"solid": "circle", "dash": "square", "dot": "diamond", "dashdot": "triangle-up"}
"""Marks that go with dashes, where there is no line."""
PLOTLY = {"top": "top center", "bottom": "bottom center", "right": "middle right", "left": "middle left"}
"""Sides of a mark, as plotly calls them."""
LETTER = 0.0085
"""Width of a letter of a name, as a share of the figure's: 8 of 940 pixels."""


def front_figure(comparison: Comparison) -> Figure | None:
    """Return client work against time, until the target is held: one large mark per scheme, a small one per seed."""
    style = looks(comparison)
    traces: list[Figure] = []
    for scheme in comparison.schemes:
        time, work = scheme.time_to_target, scheme.cost.work
        if time is None or work is None or not scheme.always_reached:
            continue
        name, look = escaped(scheme.label), style[scheme.label]
        seeds = [r for r in scheme.results if r.seconds and r.cost.work]
        marker = {"color": look.colour, "symbol": SYMBOLS[look.dash]}
        shared: Figure = {"type": "scatter", "mode": "markers", "legendgroup": name, "name": name}
        if len(seeds) > 1:
            traces.append(
                shared
                | {"x": compact(r.seconds or 0.0 for r in seeds), "y": compact(r.cost.work or 0.0 for r in seeds),
                   "marker": marker | {"size": 6, "opacity": 0.45}, "customdata": [r.seed for r in seeds],
                   "hovertemplate": "seed %{customdata}: %{x:,.4~r} s, %{y:,.4~r} s of client work"
                                    f"<extra>{name}</extra>"}
            )  # fmt: skip
        traces.append(
            shared
            | {"x": [time.mean], "y": [work.mean], "marker": marker | {"size": 14}, "mode": "markers+text",
               "text": [escaped(numbers.shortened(scheme.label, 24))], "cliponaxis": False,
               "hovertemplate": f"%{{x:,.4~r}} s, %{{y:,.4~r}} s of client work<extra>{name}</extra>"}
        )  # fmt: skip
    if not traces:
        return None
    layout = plain_layout(f"{comparison.clock} to target in seconds", "client work in seconds")
    for name in ("xaxis", "yaxis"):
        values = np.array([value for trace in traces for value in trace[name[0]]])
        wide = bool((values > 0).all()) and values.max() > 10 * values.min()
        axis = log_axis(float(values.min()), float(values.max())) if wide else {"rangemode": "tozero"}
        layout[name] |= {"tickformat": ",.10~g"} | axis
    _place_names(traces, [layout[name].get("type") == "log" for name in ("xaxis", "yaxis")])
    return {"data": traces, "layout": layout}


def _place_names(traces: list[Figure], logarithmic: list[bool]) -> None:
    """Put the names of the large marks where they cover least; small marks may lie under them."""
    large = [trace for trace in traces if "text" in trace]
    places = []
    for name, log in zip("xy", logarithmic, strict=True):
        scale = np.log if log else np.asarray
        every = scale(np.array([value for trace in traces for value in trace[name]], dtype=float))
        low, high = (float(every.min()) if log else 0.0), float(every.max())
        own = scale(np.array([trace[name][0] for trace in large], dtype=float))
        places.append((own - low) / ((high - low) or 1.0) * 0.9 + 0.05)
    names = [trace["text"][0] for trace in large]
    for trace, side in zip(large, sides(np.column_stack(places).tolist(), names, LETTER), strict=True):
        trace["textposition"] = PLOTLY[side]
        if len(large) > NAMED:
            trace["mode"] = "markers"


def speed_figure(runs: Sequence[RunRecord], comparison: Comparison, *, of: str) -> Figure | None:
    """Return the `share` of the replies that came from each tenth of the clients by speed, or the `metric` there."""
    style = looks(comparison)
    traces: list[Figure] = []
    for scheme, members in by_scheme(runs, comparison):
        found = [values for run in members if (values := _shares(run) if of == "share" else _judged(run)) is not None]
        lengths = {len(values) for values in found}
        if len(lengths) != 1:
            continue
        mean = np.mean(found, axis=0)
        name, look = escaped(scheme.label), style[scheme.label]
        traces.append(
            {"type": "scatter", "mode": "lines+markers", "x": list(range(1, len(mean) + 1)), "y": compact(mean),
             "name": name, "legendgroup": name, "line": {"color": look.colour, "dash": look.dash, "width": 2},
             "marker": {"color": look.colour, "size": 6, "symbol": SYMBOLS[look.dash]},
             "hovertemplate": f"%{{y:.3~r}} in tenth %{{x}}<extra>{name}</extra>"}
        )  # fmt: skip
    if not traces:
        return None
    title = "share of the replies" if of == "share" else escaped(f"final {comparison.metric}")
    layout = plain_layout("tenth of the clients, fastest first", title)
    layout["xaxis"] |= {"dtick": 1}
    if of == "share":
        layout["yaxis"] |= {"rangemode": "tozero", "tickformat": ".0%"}
    return {"data": traces, "layout": layout}


def _shares(run: RunRecord) -> list[float] | None:
    return participation(run)


def _judged(run: RunRecord) -> list[float] | None:
    judged = [current.by_speed for current in run.rounds if current.by_speed]
    return list(judged[-1]) if judged and run.info.status != "diverged" else None
