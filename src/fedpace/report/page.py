"""Writes the comparison as one self-contained HTML file, without network, server or other files.

From top to bottom: what was run, the result in sentences, the curves, the table, and further figures.
"""

from __future__ import annotations

import dataclasses
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedpace._base.errors import MissingExtraError
from fedpace._base.files import write_atomically
from fedpace.records.influence import Bounded, Influence, called
from fedpace.records.run import RunRecord, plain
from fedpace.report import figures, numbers
from fedpace.report.comparison import Comparison, summarise
from fedpace.report.figures import Axis, Chart, Over, by_scheme, cohort_map, looks
from fedpace.report.numbers import student_quantiles
from fedpace.report.plotly_figures import PlotlyFigure, escaped, plain_layout, plotly_figure
from fedpace.report.privacy_panel import privacy_panel, privacy_sentence
from fedpace.report.style import MAX_BANDED, Look
from fedpace.report.summary import BOUNDED, influence_sentence, sentences
from fedpace.report.tables import Cell, Column, ReportTable, caption, cost_table, scheme_table

# The browser itself refuses whatever a page under this policy would fetch.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
MAP_HEIGHT = 440
UNITS = re.compile(r"(?<=\d) (?=s\b|%)|(?<=[≥≤]) ")
"""Blanks between a number and its unit or sign, where no line may end."""
CODE = re.compile("`([^`]+)`")
NO_BREAK = "\u00a0"
OVER: dict[Over, str] = {"time": "{clock}", "rounds": "rounds", "work": "client work"}
MANY = 6
"""Number of schemes above which they can be filtered by name."""
MAX_BOUNDED = 50
"""Most clients that the panel of bounded influence lists."""
BOUNDED_HINT = (
    "Rounds in which the update of a client was clipped because it was too long, its weight was capped, or a robust "
    "rule left its update out of the step. Excluded clients get no tasks for a while: the server's "
    "validation set refused their updates."
)


@dataclass(frozen=True)
class Section:
    """A figure with its heading, and tables around it."""

    name: str
    heading: str
    hint: str
    figure: Any
    """Plotly's figure, or a mapping from view to figure; None = the page's script builds it."""
    controls: str = ""
    under: str = ""
    """Controls below the figure; the hint then stands below them."""
    above: str = ""
    below: str = ""


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
    against = _with_baseline(runs, comparison)
    table = scheme_table(against).keeping(lambda c: not c.detail)
    if comparison.target is not None:
        at = [column.title for column in table.columns].index("Time to target")
        rows = sorted(table.rows, key=lambda row: (row[at].order is None, row[at].order or 0.0))  # the fastest first
        table = dataclasses.replace(table, rows=tuple(rows))
    results = html_table(table, looks(comparison), "Schemes")
    if against.baseline is not None:
        over = f"over {escape(against.baseline)},"
        results = results.replace(over, f"over <span class='base'>{escape(against.baseline)}</span>,")
    curves = [section for section in sections if section.name == "metric"]
    body = "\n".join(
        [
            _header(comparison, title),
            _summary([*sentences(comparison), *filter(None, [influence_sentence(runs), privacy_sentence(runs)])]),
            _toolbar(against),
            *map(_section, curves),
            results,
            *(_section(section) for section in sections if section not in curves),
            *filter(None, [influence_panel(runs, comparison), privacy_panel(runs)]),
            _configuration(runs),
            _provenance(runs),
        ]
    )
    data = {
        "schemes": [
            {"label": label, "group": escaped(label), "colour": look.colour, "dash": look.dash}
            | {"seconds": {str(result.seed): result.seconds for result in comparison[label].results}}
            for label, look in looks(comparison).items()
        ],
        "baseline": against.baseline,
        "metric": comparison.metric,
        "up": comparison.direction == "up",
        "quantiles": student_quantiles(max(scheme.runs for scheme in comparison.schemes)),
        "layout": plain_layout(Chart("", Axis(""), Axis(""), (), height=MAP_HEIGHT)),
        "maps": {label: dataclasses.asdict(found) for label, found in maps.items()},
        "most_banded": MAX_BANDED,
    }
    drawn = {section.name: section.figure for section in sections if section.name}
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
{asset("page.css")}
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
{asset("page.js")}
</script>
</body>
</html>
"""


def html_table(table: ReportTable, styles: Mapping[str, Look], title: str, *, sortable: bool = True) -> str:
    """Return a table as HTML; the first cell of a row is its scheme's label. `sortable` needs the page's script."""
    heads = "".join(_heading(column, sortable) for column in table.columns)
    rows = []
    for first, *others in table.rows:
        look = styles[first.text]
        swatch = f"<span class='swatch {look.dash}' style='border-color:{look.colour}'></span>"
        cells = f"<th scope='row' class='text {first.tone}'><div class='name'>{swatch}{_cell(first)}</div></th>"
        cells += "".join(f"<td class='{cell.tone}'{_order(cell, sortable)}>{_cell(cell)}</td>" for cell in others)
        rows.append(f"<tr data-row='{escape(first.text)}'>{cells}</tr>")
    # A region that scrolls must be reachable by keyboard, and named.
    return (
        f"<div class='scroll' role='region' tabindex='0' aria-label='{escape(title)}'>"
        f"<table{' class=sortable' if sortable else ''}>"
        f"<caption>{escape(title)}</caption><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        f"<p class='hint'>{escape(' '.join(table.notes))}</p>"
    )


def influence_panel(runs: Sequence[RunRecord], comparison: Comparison) -> str:
    """Return the panel of clients whose influence was bounded, as HTML; empty if there are none."""
    order = [scheme.label for scheme in comparison.schemes]
    rows = []
    for run in runs:
        found = Influence(run.rounds)
        rows += [(run, name, client, found.excluded.get(name)) for name, client in found.clients.items()]
    if not rows:
        return ""
    shown = sorted(rows, key=lambda row: (row[3] is None, -row[2].times))[:MAX_BOUNDED]
    shown.sort(key=lambda row: (order.index(row[0].info.label), row[0].info.seed))
    schemes, seeds = len(order) > 1, len({run.info.seed for run in runs}) > 1
    heads = [*(["Scheme"] if schemes else []), *(["Seed"] if seeds else []), "Client"]
    lines = []
    for run, name, client, since in shown:
        first = [*([run.info.label] if schemes else []), *([str(run.info.seed)] if seeds else [])]
        first.append(called(name, run.info.names))
        # The scheme is the row's first cell: its column may wrap, the numbers' must not.
        cells = "".join(f"<th scope='row' class='text'>{escape(text)}</th>" for text in first)
        lines.append(f"<tr>{cells}{''.join(f'<td>{cell}</td>' for cell in _bounds(client, since))}</tr>")
    head = "".join(f"<th scope='col' class='text'>{text}</th>" for text in heads)
    head += "".join(f"<th scope='col'>{text}</th>" for text in ("Clipped", "Capped", "Left out", "Excluded"))
    few = f" Shown: the {MAX_BOUNDED} of {len(rows):,} clients with most bounds." if len(rows) > MAX_BOUNDED else ""
    hosted = any("host" in run.info.experiment for run, _, _, since in rows if since)
    back = " `fedpace readmit FOLDER CLIENT` takes an exclusion back." if hosted else ""
    return (
        f"<section id='influence'><div class='head'><h2>{BOUNDED}</h2></div>"
        f"<p class='hint'>{prose(BOUNDED_HINT + back + few)}</p>"
        f"<div class='scroll' role='region' tabindex='0' aria-label='{BOUNDED}'><table>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div></section>"
    )


def escape(text: str) -> str:
    """Return text that HTML shows unchanged."""
    return html.escape(text, quote=True)


def prose(text: str) -> str:
    """Return a sentence as HTML, with what stands between backticks as code."""
    return CODE.sub(r"<code>\1</code>", escape(text))


# -- parts of the page -----------------------------------------------------------------------------------------------


def _with_baseline(runs: Sequence[RunRecord], comparison: Comparison) -> Comparison:
    """Return the comparison with a scheme that others are compared with, so that readers can choose another one."""
    if comparison.baseline is not None or comparison.target is None or len(comparison.schemes) < 2:
        return comparison
    return summarise(runs, baseline=comparison.schemes[0].label, at=comparison.at)


def _header(comparison: Comparison, title: str) -> str:
    lines = [line[:1].upper() + line[1:] for line in (comparison.setting, caption(comparison)) if line]
    facts = "".join(f"<p class='facts'>{UNITS.sub(NO_BREAK, escape(line))}</p>" for line in lines)
    return f"<header><h1>{escape(title)}</h1>{facts}</header>"


def _summary(said: list[str]) -> str:
    """Return the result: the first sentence in large letters, and below it those that qualify it."""
    first, *others = said
    rest = f"<p class='summary'>{prose(' '.join(others))}</p>" if others else ""
    return UNITS.sub(NO_BREAK, f"<p class='lead'>{prose(first)}</p>{rest}")


def _sections(runs: Sequence[RunRecord], comparison: Comparison, mapped: list[str]) -> list[Section]:
    """Return the figures that have something to show."""
    found = [
        *_metric_section(runs, comparison),
        *_time_sections(comparison),
        *_client_sections(runs, comparison, mapped),
    ]
    delays = figures.delays_chart(runs)
    if delays is not None:
        hint = f"Mean delay of each client under seed {runs[0].info.seed}."
        found.append(Section("delays", delays.title, hint, plotly_figure(delays)))
    return found


def _metric_section(runs: Sequence[RunRecord], comparison: Comparison) -> list[Section]:
    charts = {over: figures.metric_chart(runs, comparison, over) for over in OVER}
    views = {over: plotly_figure(chart) for over, chart in charts.items() if chart is not None}
    if not views:
        return []
    name = (charts["time"] or next(chart for chart in charts.values() if chart)).y.title
    hint = ""
    if any(scheme.runs > 1 for scheme in comparison.schemes):
        hint = "Lines: means over seeds; bands: from the lowest seed to the highest. "
        if len(comparison.schemes) > MAX_BANDED:
            hint += f"Bands are drawn for {MAX_BANDED} schemes or fewer: hide some above. "
    if name != comparison.metric:
        hint += f"No run records {comparison.metric}, so this is the mean training loss of each round's clients. "
    hint += "A run that has ended keeps its last value. "
    if comparison.target is not None and name == comparison.metric:
        hint += "A dot marks where the target is held, a cross a scheme that did not hold it in every run. "
    if any(scheme.censored for scheme in comparison.schemes):
        hint += "An open triangle: runs were stopped at the easier target that they were run for. "
    names: dict[str, str] = {over: OVER[over].format(clock=comparison.clock) for over in views}
    if "time" in views and comparison.target is not None and len(comparison.schemes) > 1:
        names["speed-up"] = "speed-up"  # the page's script computes it, because readers choose the baseline
        hint += "Speed-up: how many times as fast each value is reached as with the scheme that you compare with. "
    controls = _switch("metric", names, "what is drawn")
    hint += "Drag to zoom, double-click to zoom out."
    under = _instant(name, comparison.clock) if "time" in views else ""
    return [Section("metric", name.capitalize(), hint, views, controls, under)]


def _time_sections(comparison: Comparison) -> list[Section]:
    """Return the figures of times and costs; the table of costs stands beside its figure."""
    styles, costs = looks(comparison), cost_table(comparison)
    table = "" if costs is None else html_table(costs, styles, "Cost beside time")
    found = []
    # One mark in an empty figure says no more than the table does.
    if comparison.target is not None and sum(scheme.runs for scheme in comparison.schemes) > 1:
        hint = "One mark per seed; a cross where a run ended without reaching the target. "
        if comparison.hold > 1:
            hint += "A dot is where the target is held, a small stroke where it was first met."
        times = figures.times_chart(comparison)
        found.append(Section("times", times.title, hint, plotly_figure(times)))
    work = figures.work_chart(comparison)
    if work is not None and comparison.target is not None:
        hint = f"Both until the target is held; {work.note}."
        found.append(Section("front", "Client work against time", hint, plotly_figure(work), above=table))
        table = ""
    if table and found:
        found[-1] = dataclasses.replace(found[-1], below=table)
    elif table:
        found.append(Section("", "", "", None, below=table))
    return found


def _client_sections(runs: Sequence[RunRecord], comparison: Comparison, mapped: list[str]) -> list[Section]:
    """Return the figures about clients: the map of cohorts, replies by speed, and clients per round."""
    found = []
    if mapped:
        hint = (
            "A row is a client, the fastest at the bottom; a column is a step of the server, and a round is one step. "
            "The stronger the colour, the larger the weight of the client's update. A cross marks a task that failed "
            "or was given up. First seed."
        )
        found.append(
            Section(
                "map", "Which clients took part", hint, None, _choice("Scheme", "map-scheme", mapped, comparison.best)
            )
        )
    charts = {of: figures.speed_chart(runs, comparison, of) for of in ("share", "metric")}
    views = {of: plotly_figure(chart) for of, chart in charts.items() if chart is not None}
    if views:
        hint = (
            "Clients in ten groups by expected delay. A scheme that uses slow clients less may serve them worse: "
            f"{comparison.metric} shows whether it does."
        )
        names = {"share": "replies", "metric": comparison.metric}
        controls = _switch("speed", {of: names[of] for of in views}, "what is shown by speed")
        found.append(Section("speed", "Fast and slow clients", hint, views, controls))
    cohort = figures.cohort_chart(runs, comparison)
    if cohort is not None:
        hint = (
            "Different clients whose updates made a step of the server; a round is one step. Mean over the runs that "
            "had that step."
        )
        found.append(Section("cohort", cohort.title, hint, plotly_figure(cohort)))
    return found


def _section(section: Section) -> str:
    if not section.name:
        return section.above + section.below
    figure: PlotlyFigure = section.figure or {}
    layout = (figure if "layout" in figure else next(iter(figure.values()), {})).get("layout", {})
    height = layout.get("height", MAP_HEIGHT)  # kept free before the figure is there, so that nothing jumps
    hint = f"<p class='hint'>{prose(section.hint.strip())}</p>"
    return (
        f"{section.above}<section><div class='head'><h2>{escape(section.heading)}</h2>{section.controls}</div>"
        f"{'' if section.under else hint}"
        f"<div class='figure' id='figure-{section.name}' role='img' aria-label='{escape(section.heading)}' "
        f"style='min-height:{height}px'></div>"
        f"{section.under + hint if section.under else ''}</section>{section.below}"
    )


def _toolbar(comparison: Comparison) -> str:
    """Return what decides which schemes are shown, and which one others are compared with; none for one scheme."""
    if len(comparison.schemes) == 1:
        return ""
    buttons = "".join(
        f"<button type='button' data-scheme='{number}' aria-pressed='true'>"
        f"<span class='swatch {look.dash}' style='border-color:{look.colour}'></span>"
        f"<span>{escape(label)}</span></button>"
        for number, (label, look) in enumerate(looks(comparison).items())
    )
    every = "<button type='button' id='all-schemes'>show all</button>"
    found = f"<div class='chips' role='group' aria-label='schemes in the figures'>{buttons}{every}</div>"
    tools = ""
    if len(comparison.schemes) > MANY:
        tools += "<label>Filter <input id='filter' type='search' placeholder='part of a name' size='14'></label>"
    if comparison.baseline is not None:
        tools += _choice("Compare with", "baseline", [s.label for s in comparison.schemes], comparison.baseline)
    hint = "<span class='how'>Click a scheme to hide it, double-click to see it alone.</span>"
    return f"<div class='tools'>{tools}{hint}</div>{found}"


def _switch(name: str, views: Mapping[str, str], label: str) -> str:
    """Return buttons of which one is pressed; none if there is only one view."""
    if len(views) < 2:
        return ""
    buttons = "".join(
        f"<button type='button' data-figure='{name}' data-view='{view}' "
        f"aria-pressed='{'true' if position == 0 else 'false'}'>{escape(text)}</button>"
        for position, (view, text) in enumerate(views.items())
    )
    return f"<div class='switch' role='group' aria-label='{escape(label)}'>{buttons}</div>"


def _instant(metric: str, clock: str) -> str:
    """Return the field that asks for the metric of every scheme at a time."""
    return (
        f"<div class='instant'><label for='at'>{escape(metric.capitalize())} after</label> "
        "<input id='at' type='number' min='0' step='any' inputmode='decimal'> "
        f"<label for='at-range'>s of {clock}</label> <input id='at-range' type='range' min='0' max='1000' "
        "aria-label='time'><ul id='at-values' aria-live='polite'></ul></div>"
    )


def _choice(text: str, name: str, labels: list[str], chosen: str | None) -> str:
    """Return a list of schemes to choose from."""
    options = "".join(
        f"<option value='{escape(label)}'{' selected' if label == chosen else ''}>{escape(label)}</option>"
        for label in labels
    )
    return f"<label class='choice'>{text} <select id='{name}'>{options}</select></label>"


def _heading(column: Column, sortable: bool) -> str:
    text = f"{escape(column.heading)}{f'<br>{escape(column.sub)}' if column.sub else ''}"
    kind = f" data-column='{escape(column.title)}'" + ("" if column.number else " class=text")
    if not sortable:
        return f"<th scope='col'{kind}>{text}</th>"
    return f"<th scope='col'{kind} aria-sort='none'><button type='button' class='sort'>{text}</button></th>"


def _order(cell: Cell, sortable: bool) -> str:
    return f" data-order='{cell.order:.6g}'" if sortable and cell.order is not None else ""


def _cell(cell: Cell) -> str:
    note = f"<small>{escape(cell.note)}</small>" if cell.note else ""
    return f"<span>{escape(cell.text)}{note}</span>"


def _bounds(client: Bounded, since: int | None) -> list[str]:
    clipped = f"<small>to {numbers.percent(client.shortest)}</small>" if client.clipped else ""
    weight = client.least_weight
    capped = "" if weight is None else f"<small>to {numbers.percent(weight)}</small>"
    excluded = "readmitted" if client.exclusions else ""
    if since is not None:
        excluded = f"<span class='failed'>since round {since:,}</span>"
    return [f"{client.clipped or ''}{clipped}", f"{client.capped or ''}{capped}", f"{client.left_out or ''}", excluded]


def _configuration(runs: Sequence[RunRecord]) -> str:
    """Return every distinct configuration, because a folder may hold runs of several."""
    texts = dict.fromkeys(json.dumps(plain(run.info.experiment), indent=2, ensure_ascii=False) for run in runs)
    blocks = "".join(f"<pre tabindex='0'>{escape(text)}</pre>" for text in texts)
    return f"<details><summary>Configuration</summary>{blocks}</details>"


def _provenance(runs: Sequence[RunRecord]) -> str:
    """Return seeds, versions, commit, start and duration of the runs."""
    rows = []
    for name, values in (
        ("Seeds", [str(run.info.seed) for run in runs]),
        ("Versions", [", ".join(f"{name} {version}" for name, version in run.info.versions.items()) for run in runs]),
        ("Commit", [run.info.commit or "" for run in runs]),
        ("Started", [min(run.info.started for run in runs)]),
    ):
        distinct = [value for value in dict.fromkeys(values) if value]
        if distinct:
            joint = ", " if name == "Seeds" else "; "
            rows.append(f"<dt>{name}</dt><dd>{escape(joint.join(distinct))}</dd>")
    wall = sum(run.info.wall_seconds or 0.0 for run in runs)
    if wall:
        rows.append(f"<dt>Computed in</dt><dd>{wall:,.1f} s of real time, {len(runs)} runs together</dd>")
    return f"<footer><dl>{''.join(rows)}</dl></footer>"


def _script_json(value: Any) -> str:
    """Return JSON that cannot end the script element it stands in."""
    text = json.dumps(plain(value), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def asset(name: str) -> str:
    """Return a style sheet or script of the pages."""
    return files("fedpace.report").joinpath("assets", name).read_text(encoding="utf-8").rstrip()
