"""Reports how clients' influence was bounded: a sentence for the terminal, a panel for the page."""

from __future__ import annotations

from collections.abc import Sequence

from fedpace.records.influence import Bounded, Influence, called
from fedpace.records.run import RunRecord
from fedpace.report import numbers
from fedpace.report.page_parts import escape
from fedpace.report.tables import Comparison

MOST = 50
"""Most clients that the panel shows."""
HEADING = "Bounded influence"
HINT = (
    "In how many rounds the update of a client was clipped since it was too long, its weight was capped, or a robust "
    "rule left its update out of the step. Excluded clients are not asked any more: their updates opposed the "
    "server's validation set."
)


def influence_sentence(runs: Sequence[RunRecord]) -> str:
    """Return one sentence on the bounds in all runs; empty if no client was bounded."""
    found = [(run, each) for run in runs if (each := Influence(run.rounds))]
    if not found:
        return ""
    if len(runs) == 1:
        ((run, each),) = found
        return f"{HEADING}: {each.line(run.info.names)}."
    words = {"clipped": "update", "capped": "weight", "left_out": "update"}
    ends = {"clipped": "clipped", "capped": "capped", "left_out": "left out"}
    said = []
    for kind, noun in words.items():
        if count := sum(each.total(kind) for _, each in found):
            said.append(f"{numbers.counted(count, noun)} {ends[kind]}")
    if excluded := sum(len(each.excluded) for _, each in found):
        said.append(f"{numbers.counted(excluded, 'client')} excluded")
    return f"{HEADING}, {numbers.counted(len(runs), 'run')}: {', '.join(said) or 'nobody is excluded any more'}."


def influence_panel(runs: Sequence[RunRecord], comparison: Comparison) -> str:
    """Return the panel of the page as HTML; empty if no run has anything to show."""
    order = [scheme.label for scheme in comparison.schemes]
    rows = []
    for run in runs:
        found = Influence(run.rounds)
        rows += [(run, name, client, found.excluded.get(name)) for name, client in found.clients.items()]
    if not rows:
        return ""
    shown = sorted(rows, key=lambda row: (row[3] is None, -row[2].times))[:MOST]
    shown.sort(key=lambda row: (order.index(row[0].info.label), row[0].info.seed))
    schemes, seeds = len(order) > 1, len({run.info.seed for run in runs}) > 1
    heads = [*(["Scheme"] if schemes else []), *(["Seed"] if seeds else []), "Client"]
    counts = ("Clipped", "Capped", "Left out", "Excluded")
    lines = []
    for run, name, client, since in shown:
        first = [*([run.info.label] if schemes else []), *([str(run.info.seed)] if seeds else [])]
        first.append(called(name, run.info.names))
        # The scheme is the row's first cell: its column may wrap, the numbers' must not.
        cells = "".join(f"<th scope='row' class='text'>{escape(text)}</th>" for text in first)
        lines.append(f"<tr>{cells}{''.join(f'<td>{cell}</td>' for cell in _cells(client, since))}</tr>")
    head = "".join(f"<th scope='col' class='text'>{text}</th>" for text in heads)
    head += "".join(f"<th scope='col'>{text}</th>" for text in counts)
    few = f" The {MOST} of {len(rows):,} clients of whom most was bounded." if len(rows) > MOST else ""
    back = " `fedpace readmit FOLDER CLIENT` asks one again." if any(_hosted(row[0]) for row in rows if row[3]) else ""
    return (
        f"<section id='influence'><div class='head'><h2>{HEADING}</h2></div>"
        f"<p class='hint'>{escape(HINT + back + few)}</p>"
        f"<div class='scroll' role='region' tabindex='0' aria-label='{HEADING}'><table>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div></section>"
    )


def _cells(client: Bounded, since: int | None) -> list[str]:
    clipped = f"<small>to {numbers.percent(client.shortest)}</small>" if client.clipped else ""
    weight = client.least_weight
    capped = "" if weight is None else f"<small>to {numbers.percent(weight)}</small>"
    excluded = "asked again" if client.exclusions else ""
    if since is not None:
        excluded = f"since round {since:,}"
    return [
        f"{client.clipped or ''}{clipped}",
        f"{client.capped or ''}{capped}",
        f"{client.left_out or ''}",
        f"<span class='failed'>{excluded}</span>" if since is not None else excluded,
    ]


def _hosted(run: RunRecord) -> bool:
    """Whether a server made the run, which takes requests."""
    return "host" in run.info.experiment
