"""Writes the comparison as one self-contained HTML file, without network, server or other files."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedpace._base.errors import MissingExtraError
from fedpace._base.files import write_atomically
from fedpace.records.run import RunRecord, plain
from fedpace.report import figures
from fedpace.report.cells import caption, columns, cost_columns, cost_legend, legend
from fedpace.report.cohort_map import cohort_map
from fedpace.report.cost_figures import front_figure, speed_figure
from fedpace.report.curves import by_scheme
from fedpace.report.influence import influence_panel
from fedpace.report.page_parts import chips, configuration, escape, instant, provenance, switch, table
from fedpace.report.style import BANDED, looks
from fedpace.report.summary import sentences
from fedpace.report.tables import Comparison

# The browser itself refuses whatever a page under this policy would fetch.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
MAP_HEIGHT = 440
UNITS = re.compile(r"(?<=\d) (?=s\b|%)|(?<=[≥≤]) ")
"""Between a number and its unit or sign, where no line may end."""
TOGETHER = "\u00a0"
OVER = {"time": "{clock}", "rounds": "rounds", "work": "client work"}


@dataclass(frozen=True)
class Section:
    """A figure with its heading. One of several views holds a figure for each."""

    name: str
    heading: str
    hint: str
    figure: Any
    controls: str = ""
    above: str = ""
    below: str = ""
    """A table that goes with it."""


def write_page(
    runs: Sequence[RunRecord], comparison: Comparison, path: Path, *, title: str = "Comparison of client selection"
) -> None:
    """Write the page to `path`."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as cause:
        raise MissingExtraError("the page of a comparison", extra="report", missing="plotly") from cause
    write_atomically(path, render_page(runs, comparison, title=title, plotly=get_plotlyjs()).encode())


def render_page(runs: Sequence[RunRecord], comparison: Comparison, *, title: str, plotly: str) -> str:
    """Return the page; `plotly` is the source of plotly.js."""
    maps = {
        scheme.label: found
        for scheme, members in by_scheme(runs, comparison)
        if (found := cohort_map(members[0])) is not None
    }
    sections = _sections(runs, comparison, list(maps))
    body = "\n".join(
        [
            f"<header><h1>{escape(title)}</h1>"
            f"<p class='facts'>{UNITS.sub(TOGETHER, escape(caption(comparison)))}</p></header>",
            _summary(sentences(comparison)),
            table(comparison, columns(comparison, wide=True), "Schemes", legend(comparison)),
            chips(comparison),
            *map(_drawn, sections),
            *filter(None, [influence_panel(runs, comparison)]),
            configuration(runs),
            provenance(runs),
        ]
    )
    data = {
        "schemes": [
            {"label": scheme.label, "group": figures.escaped(scheme.label), "colour": look.colour, "dash": look.dash}
            for scheme in comparison.schemes
            for look in [looks(comparison)[scheme.label]]
        ],
        "map_height": MAP_HEIGHT,
        "maps": {label: dataclasses.asdict(found) for label, found in maps.items()},
    }
    drawn = {section.name: section.figure for section in sections}
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
{_asset("page.css")}
</style>
</head>
<body>
<main>
{body}
</main>
<script>{plotly}</script>
<script type="application/json" id="figures">{_script_json(drawn)}</script>
<script type="application/json" id="data">{_script_json(data)}</script>
<script>
{_asset("page.js")}
</script>
</body>
</html>
"""


def _summary(said: list[str]) -> str:
    """Return the outcome: what everybody wants to know first is the largest, and what qualifies it stands below."""
    first, *others = said
    rest = f"<p class='summary'>{escape(' '.join(others))}</p>" if others else ""
    return UNITS.sub(TOGETHER, f"<p class='lead'>{escape(first)}</p>{rest}")


def _sections(runs: Sequence[RunRecord], comparison: Comparison, mapped: list[str]) -> list[Section]:
    several = any(scheme.runs > 1 for scheme in comparison.schemes)
    band = ""
    if several:
        band = "Lines: means over seeds; bands: from the lowest seed to the highest. "
        if len(comparison.schemes) > BANDED:
            band += f"Bands are drawn for {BANDED} schemes or fewer: hide some above. "
    ends = "" if comparison.target is None else "A cross marks a scheme that did not reach the target in every run. "
    stopped = ""
    if any(scheme.censored for scheme in comparison.schemes):
        stopped = "An open triangle: runs were stopped at the easier target that they were run for. "
    metric = {over: figures.metric_figure(runs, comparison, over=over) for over in OVER}
    views = {over: figure for over, figure in metric.items() if figure is not None}
    found = [
        Section(
            "metric",
            comparison.metric.capitalize(),
            f"{band}A run that has ended keeps its last value. {ends}{stopped}Drag to zoom, double-click to zoom out.",
            views,
            switch("metric", {over: OVER[over].format(clock=comparison.clock) for over in views}, "horizontal axis")
            + instant(comparison.metric, comparison.clock),
        )
    ]
    # One mark in an empty figure says no more than the table does.
    if comparison.target is not None and sum(scheme.runs for scheme in comparison.schemes) > 1:
        hint = f"One mark per seed; a cross where a run ended without reaching the target. {stopped}"
        if comparison.hold > 1:
            hint += "A dot is where the target is held, a small stroke where it was first met."
        found.append(Section("times", "Time to target, seed by seed", hint, figures.times_figure(comparison)))
        front = front_figure(comparison)
        if front is not None:
            hint = "Both until the target is held; schemes that always held it. Down and left is better."
            found.append(Section("front", "Client work against time", hint, front))
    if costs := cost_columns(comparison):
        # Beside its figure; without one behind the curves, so that the first figure is not a screen further down.
        above = table(comparison, costs, "Cost beside time", cost_legend(comparison))
        place = next((at for at, section in enumerate(found) if section.name == "front"), None)
        if place is None:
            found[-1] = replace(found[-1], below=above)
        else:
            found[place] = replace(found[place], above=above)
    if mapped:
        hint = (
            "Clients from the fastest (bottom) to the slowest, rounds from left to right; the stronger the colour, the "
            "more a client weighed. Without rounds: the clients whose replies made a step. A cross marks a task that "
            "failed or was given up. First seed."
        )
        found.append(Section("map", "Who was chosen", hint, None, _choice(mapped, comparison.best)))
    speeds = {of: speed_figure(runs, comparison, of=of) for of in ("share", "metric")}
    views = {of: figure for of, figure in speeds.items() if figure is not None}
    if views:
        hint = (
            "Clients in ten groups by expected delay. A scheme that uses the slow ones less may serve them worse: "
            f"{comparison.metric} shows whether it does."
        )
        names = {"share": "replies", "metric": comparison.metric}
        controls = switch("speed", {of: names[of] for of in views}, "what is shown by speed")
        found.append(Section("speed", "Fast clients and slow", hint, views, controls))
    hint = "Clients chosen in each round, over the runs that had that round."
    found.append(Section("cohort", "Cohort size", hint, figures.cohort_figure(runs, comparison)))
    delays = figures.delays_figure(runs)
    if delays is not None:
        hint = f"Mean delay of each client under seed {runs[0].info.seed}."
        found.append(Section("delays", "Delays of the clients", hint, delays))
    return found


def _choice(labels: list[str], best: str | None) -> str:
    """Return a list of schemes to choose from; the fastest comes up first."""
    options = "".join(
        f"<option value='{escape(label)}'{' selected' if label == best else ''}>{escape(label)}</option>"
        for label in labels
    )
    return f"<label class='choice'>Scheme <select id='map-scheme'>{options}</select></label>"


def _drawn(section: Section) -> str:
    figure = section.figure or {}
    layout = (figure if "layout" in figure else next(iter(figure.values()), {})).get("layout", {})
    height = layout.get("height", MAP_HEIGHT)  # kept free before the figure is there, so that nothing jumps
    return (
        f"{section.above}<section><div class='head'><h2>{escape(section.heading)}</h2>{section.controls}</div>"
        f"<p class='hint'>{escape(section.hint.strip())}</p>"
        f"<div class='figure' id='figure-{section.name}' role='img' aria-label='{escape(section.heading)}' "
        f"style='min-height:{height}px'></div>"
        f"</section>{section.below}"
    )


def _script_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(plain(value), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return files("fedpace.report").joinpath("assets", name).read_text(encoding="utf-8").rstrip()
