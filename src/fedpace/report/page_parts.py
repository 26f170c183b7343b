"""Parts of the page other than figures: tables, controls, and the configuration of the runs."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence

from fedpace.records.run import RunRecord, plain
from fedpace.report.cells import Cell, Column
from fedpace.report.style import looks
from fedpace.report.tables import Comparison


def table(comparison: Comparison, shown: Sequence[Column], title: str, below: str) -> str:
    """Return a table with a row per scheme."""
    colours = looks(comparison)
    heads = "".join(
        f"<th scope='col'{'' if column.number else ' class=text'}>{escape(column.heading)}"
        f"{f'<br>{escape(column.sub)}' if column.sub else ''}</th>"
        for column in shown
    )
    rows = []
    for scheme in comparison.schemes:
        look = colours[scheme.label]
        swatch = f"<span class='swatch {look.dash}' style='border-color:{look.colour}'></span>"
        label, *others = (column.fill(scheme) for column in shown)
        cells = f"<th scope='row' class='text {label.tone}'><div class='name'>{swatch}{_cell(label)}</div></th>"
        cells += "".join(f"<td class='{cell.tone}'>{_cell(cell)}</td>" for cell in others)
        rows.append(f"<tr>{cells}</tr>")
    # A region that scrolls must be reachable by keyboard, and named.
    return (
        f"<div class='scroll' role='region' tabindex='0' aria-label='{escape(title)}'><table>"
        f"<caption>{escape(title)}</caption><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        f"<p class='hint'>{escape(below)}</p>"
    )


def chips(comparison: Comparison) -> str:
    """Return a button per scheme that shows or hides it in all figures; none for a single scheme."""
    if len(comparison.schemes) == 1:
        return ""
    colours = looks(comparison)
    buttons = "".join(
        f"<button type='button' data-scheme='{number}' aria-pressed='true'>"
        f"<span class='swatch {colours[scheme.label].dash}' style='border-color:{colours[scheme.label].colour}'></span>"
        f"<span>{escape(scheme.label)}</span></button>"
        for number, scheme in enumerate(comparison.schemes)
    )
    every = "<button type='button' id='all-schemes'>show all</button>"
    return f"<div class='chips' role='group' aria-label='schemes in the figures'>{buttons}{every}</div>"


def switch(name: str, views: Mapping[str, str], label: str) -> str:
    """Return buttons of which one is pressed; none where there is nothing to choose."""
    if len(views) < 2:
        return ""
    buttons = "".join(
        f"<button type='button' data-figure='{name}' data-view='{view}' "
        f"aria-pressed='{'true' if position == 0 else 'false'}'>{escape(text)}</button>"
        for position, (view, text) in enumerate(views.items())
    )
    return f"<div class='switch' role='group' aria-label='{escape(label)}'>{buttons}</div>"


def instant(metric: str, clock: str) -> str:
    """Return the field that asks how far everybody was at a time."""
    return (
        f"<div class='instant'><label for='at'>{escape(metric.capitalize())} after</label> "
        "<input id='at' type='number' min='0' step='any' inputmode='decimal'> "
        f"<label for='at-range'>s of {clock}</label> <input id='at-range' type='range' min='0' max='1000' "
        "aria-label='time'><ul id='at-values' aria-live='polite'></ul></div>"
    )


def configuration(runs: Sequence[RunRecord]) -> str:
    """Every distinct configuration, since a folder may hold runs of several."""
    texts = dict.fromkeys(json.dumps(plain(run.info.experiment), indent=2, ensure_ascii=False) for run in runs)
    blocks = "".join(f"<pre tabindex='0'>{escape(text)}</pre>" for text in texts)
    return f"<details><summary>Configuration</summary>{blocks}</details>"


def provenance(runs: Sequence[RunRecord]) -> str:
    """Who made this, from what."""
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


def _cell(cell: Cell) -> str:
    note = f"<small>{escape(cell.note)}</small>" if cell.note else ""
    return f"<span>{escape(cell.text)}{note}</span>"


def escape(text: str) -> str:
    """Return text that HTML shows as it is."""
    return html.escape(text, quote=True)
