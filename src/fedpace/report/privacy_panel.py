"""What a report says about private training: the sums, and the budget that differential privacy has spent."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from fedpace.records.run import Round, RunRecord
from fedpace.report.numbers import counted

TITLE = "Privacy"
PARTS = (0.25, 0.5, 0.75, 1.0)
"""Parts of a run's time at which the panel shows the budget."""


def privacy_sentence(runs: Sequence[RunRecord]) -> str:
    """Return one or two sentences on what the server saw; empty if it saw every update."""
    options = _options(runs)
    if not options:
        return ""
    said = f"{TITLE}: the server saw sums over at least {counted(options.get('minimum', 1), 'client')}."
    told = [facts for run in runs if (facts := _facts(run.rounds))]
    if not told:
        return said
    spent = max(facts["epsilon"] for facts in told)
    out = max(int(facts["out of budget"]) for facts in told)
    gone = f"; in one run {counted(out, 'client')} had no budget left" if out else ""
    return (
        f"{said} Of the budget epsilon = {options['epsilon']:g} (delta {options['delta']:g}) of each client, at most "
        f"{spent:.3g} was spent{gone}."
    )


def privacy_panel(runs: Sequence[RunRecord]) -> str:
    """Return a table of the budget spent over time, as HTML; empty without differential privacy."""
    lines = []
    for run in runs:
        if (last := _facts(run.rounds)) is None:
            continue
        end = run.rounds[-1].clock
        spent = [_facts([each for each in run.rounds if each.clock <= part * end]) for part in PARTS]
        cells = [f"{0.0 if facts is None else facts['epsilon']:.3g}" for facts in spent]
        cells += [f"{last['median epsilon']:.3g}", f"{int(last['out of budget']):,}"]
        first = "".join(f"<th scope='row' class='text'>{html.escape(str(text))}</th>" for text in _names(run))
        lines.append(f"<tr>{first}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    if not lines:
        return ""
    options = _options(runs)
    heads = [f"After {part:.0%}" for part in PARTS] + ["Median client", "Clients without budget"]
    head = "".join(f"<th scope='col' class='text'>{text}</th>" for text in ("Scheme", "Seed"))
    head += "".join(f"<th scope='col'>{text}</th>" for text in heads)
    hint = (
        f"Largest epsilon that a client has spent at delta = {options['delta']:g}, of a budget of "
        f"{options['epsilon']:g}, after parts of the run's time. It covers updates only."
    )
    return (
        f"<section id='privacy'><div class='head'><h2>{TITLE}</h2></div><p class='hint'>{html.escape(hint)}</p>"
        f"<div class='scroll' role='region' tabindex='0' aria-label='{TITLE}'><table>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div></section>"
    )


def _names(run: RunRecord) -> tuple[str, int]:
    return run.info.label, run.info.seed


def _options(runs: Sequence[RunRecord]) -> Mapping[str, Any]:
    """Return the table `[privacy]` of the runs; empty if the server saw every update."""
    found = [run.info.experiment.get("privacy", {}) for run in runs]
    return next((options for options in found if options.get("aggregation") == "sums"), {})


def _facts(rounds: Sequence[Round]) -> Mapping[str, float] | None:
    """Return the budget after the last of these rounds that records it."""
    return next((each.facts["privacy"] for each in reversed(rounds) if "privacy" in each.facts), None)
