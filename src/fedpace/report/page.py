"""The comparison as one HTML file that needs nothing else: no network, no server, no other file."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedpace.core.errors import MissingExtraError
from fedpace.core.files import write_atomically
from fedpace.records.run import RunRecord, plain
from fedpace.report import figures
from fedpace.report.cells import Cell, caption, columns, legend
from fedpace.report.style import looks
from fedpace.report.summary import sentences
from fedpace.report.tables import Comparison

# The browser itself refuses whatever a page under this policy would fetch.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


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
    drawn = _figures(runs, comparison)
    body = "\n".join(
        [
            f"<header><h1>{_escape(title)}</h1><p class='facts'>{_escape(caption(comparison))}</p></header>",
            f"<p class='summary'>{_escape(' '.join(sentences(comparison)))}</p>",
            _table(comparison),
            *(_section(name, heading, hint) for name, (heading, hint, _) in drawn.items()),
            _configuration(runs),
            _provenance(runs),
        ]
    )
    data = _script_json({name: figure for name, (_, _, figure) in drawn.items()})
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{_escape(title)}</title>
<style>
{_asset("page.css")}
</style>
</head>
<body>
<main>
{body}
</main>
<script>{plotly}</script>
<script type="application/json" id="figures">{data}</script>
<script>
{_asset("page.js")}
</script>
</body>
</html>
"""


def _figures(runs: Sequence[RunRecord], comparison: Comparison) -> dict[str, tuple[str, str, Any]]:
    """Return heading, hint and content of each figure; the first holds both of its views."""
    several = any(scheme.runs > 1 for scheme in comparison.schemes)
    band = "Line: mean over seeds; band: from the least to the greatest. " if several else ""
    ends = "" if comparison.target is None else "A cross marks a scheme that did not reach the target in every run. "
    metric = {over: figures.metric_figure(runs, comparison, over=over) for over in ("time", "rounds")}
    found: dict[str, tuple[str, str, Any]] = {
        "metric": (
            comparison.metric.capitalize(),
            f"{band}A run that has ended keeps its last value. {ends}Drag to zoom, double-click to return.",
            metric,
        )
    }
    if comparison.target is not None:
        hint = "One mark a seed; a cross where a run ended without reaching the target."
        if comparison.hold > 1:
            hint += " A dot is where the target is held, a small stroke where it was first met."
        found["times"] = ("Time to target, seed by seed", hint, figures.times_figure(comparison))
    hint = "Clients chosen in each round, over the runs that had that round."
    found["cohort"] = ("Cohort size", hint, figures.cohort_figure(runs, comparison))
    delays = figures.delays_figure(runs)
    if delays is not None:
        hint = f"Mean delay of each client under seed {runs[0].info.seed}."
        found["delays"] = ("Delays of the clients", hint, delays)
    return found


def _section(name: str, heading: str, hint: str) -> str:
    buttons = ""
    if name == "metric":
        buttons = (
            "<div class='switch' role='group' aria-label='horizontal axis'>"
            "<button type='button' data-view='time' aria-pressed='true'>virtual time</button>"
            "<button type='button' data-view='rounds' aria-pressed='false'>rounds</button></div>"
        )
    return (
        f"<section><div class='head'><h2>{_escape(heading)}</h2>{buttons}</div>"
        f"<p class='hint'>{_escape(hint.strip())}</p><div class='figure' id='figure-{name}'></div></section>"
    )


def _table(comparison: Comparison) -> str:
    found = columns(comparison, wide=True)
    colours = looks(comparison)
    heads = "".join(
        f"<th scope='col'{'' if column.number else ' class=text'}>{_escape(column.heading)}"
        f"{f'<br>{_escape(column.sub)}' if column.sub else ''}</th>"
        for column in found
    )
    rows = []
    for scheme in comparison.schemes:
        look = colours[scheme.label]
        swatch = f"<span class='swatch {look.dash}' style='border-color:{look.colour}'></span>"
        label, *others = (column.fill(scheme) for column in found)
        cells = f"<th scope='row' class='text {label.tone}'><div class='name'>{swatch}{_cell(label)}</div></th>"
        cells += "".join(f"<td class='{cell.tone}'>{_cell(cell)}</td>" for cell in others)
        rows.append(f"<tr>{cells}</tr>")
    return (
        f"<div class='scroll'><table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        f"<p class='hint'>{_escape(legend(comparison))}</p>"
    )


def _cell(cell: Cell) -> str:
    note = f"<small>{_escape(cell.note)}</small>" if cell.note else ""
    return f"<span>{_escape(cell.text)}{note}</span>"


def _configuration(runs: Sequence[RunRecord]) -> str:
    """Every distinct configuration, since a folder may hold runs of several."""
    texts = dict.fromkeys(json.dumps(plain(run.info.experiment), indent=2, ensure_ascii=False) for run in runs)
    blocks = "".join(f"<pre>{_escape(text)}</pre>" for text in texts)
    return f"<details><summary>Configuration</summary>{blocks}</details>"


def _provenance(runs: Sequence[RunRecord]) -> str:
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
            rows.append(f"<dt>{name}</dt><dd>{_escape(joint.join(distinct))}</dd>")
    wall = sum(run.info.wall_seconds or 0.0 for run in runs)
    if wall:
        rows.append(f"<dt>Computed in</dt><dd>{wall:,.1f} s of real time, {len(runs)} runs together</dd>")
    return f"<footer><dl>{''.join(rows)}</dl></footer>"


def _script_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(plain(value), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _escape(text: str) -> str:
    return html.escape(text, quote=True)


def _asset(name: str) -> str:
    return files("fedpace.report").joinpath("assets", name).read_text(encoding="utf-8").rstrip()
