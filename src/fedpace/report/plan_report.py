"""Shows a cohort plan as a picture and as a page: the trade-off between long rounds and inaccurate steps."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedpace._base.files import keeping, write_atomically
from fedpace.planning import CohortPlan, PlanChoice
from fedpace.report import numbers
from fedpace.report.figures import Axis, Chart, Series
from fedpace.report.page import asset, prose
from fedpace.report.picture import draw_chart, new_figure, rendered
from fedpace.report.style import NEUTRAL, PALETTE

LISTED = 1000
"""Most clients that the page lists."""


def write_plan_png(plan: CohortPlan, path: Path) -> None:
    """Draw the frontier into a PNG file."""
    _write(path, _drawn(plan, "png"))


def write_plan_page(plan: CohortPlan, path: Path) -> None:
    """Write a page that needs nothing else: what the plan is, the picture, the frontier and the clients."""
    picture = _drawn(plan, "svg").decode()
    picture = picture[picture.index("<svg") :]
    rows = [
        (html.escape(str(client)), numbers.seconds(seconds), f"{weight:.2%}")
        for client, weight, seconds in zip(plan.clients, plan.weights, plan.seconds, strict=True)
    ]
    first, *others = plan.sentences()
    left_out = len(rows) - LISTED
    note = f"<p>and {left_out:,} more: <code>fedpace plan --json</code> has all</p>" if left_out > 0 else ""
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>Clients to wait for</title><style>{asset("page.css")}
svg {{ max-width: 100%; height: auto; margin-top: 28px; border-radius: 6px; }} tr.chosen td {{ font-weight: 700; }}
</style></head>
<body><main><h1>Clients to wait for</h1><p class="lead">{prose(first)}</p><p class="summary">{
        prose(" ".join(others))
    }</p>
{picture}
<section><h2>Alternatives</h2>
{
        _table(
            ("Clients", "with a weight", "Seconds per round", "Error", "Cost"),
            [cells(point) for point in shown(plan)],
            [point == plan.chosen for point in shown(plan)],
        )
    }
<p class="hint">Cost: seconds per round / (1 - error), in proportion to the time to a target.</p></section>
<section><h2>The cohort</h2>
{_table(("Client", "Seconds", "Weight"), rows[:LISTED], [False] * len(rows[:LISTED]))}
{note}</section></main></body></html>
"""
    _write(path, page.encode())


def shown(plan: CohortPlan, most: int = 14) -> list[PlanChoice]:
    """Return some points of the frontier, evenly over its length, with the chosen one among them, and all clients."""
    points = [point for point in plan.frontier if math.isfinite(point.cost)]
    step = max(1, math.ceil(len(points) / most))
    some = [point for place, point in enumerate(points) if place % step == 0 or point == plan.chosen]
    return some if plan.everyone in some else [*some, plan.everyone]


def cells(point: PlanChoice) -> tuple[str, ...]:
    """Return a point as people read it."""
    error = f"{point.error:.1%}"
    return f"{point.prefix:,}", f"{point.clients:,}", numbers.digits(point.seconds), error, numbers.digits(point.cost)


def _table(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]], marked: list[bool]) -> str:
    head = "".join(f"<th>{heading}</th>" for heading in headings)
    body = "".join(
        f"<tr{' class=chosen' if mark else ''}>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>"
        for row, mark in zip(rows, marked, strict=True)
    )
    return f"<div class='scroll' tabindex='0'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _drawn(plan: CohortPlan, kind: str) -> bytes:
    figure = new_figure(5.2, 4.2)
    draw_chart(figure.subplots(), plan_chart(plan))
    return rendered(figure, kind)


def plan_chart(plan: CohortPlan) -> Chart:
    """Return the cost of waiting longer, with the plan marked."""
    points = [point for point in (*plan.frontier, plan.everyone) if math.isfinite(point.cost)]
    points.sort(key=lambda point: point.seconds)
    seconds = np.array([point.seconds for point in points])
    cost = np.array([point.cost for point in points])
    chosen = plan.chosen
    return Chart(
        f"Clients to wait for, of {plan.population:,}",
        Axis("seconds per round", log=True),
        Axis("cost in seconds, as the time to a target", log=True),
        (
            Series(
                seconds, cost, colour=PALETTE[0], symbol="circle", size=4,
                legend="cost: seconds per round / (1 - error)",
            ),
            Series(seconds, seconds, colour=NEUTRAL, dash="dash", legend="cost without an error"),
            Series(
                np.array([chosen.seconds]), np.array([chosen.cost]), "marks", colour=PALETTE[1], symbol="circle",
                size=13, legend=f"the plan: {numbers.counted(chosen.clients, 'client')}, error {chosen.error:.0%}",
            ),
        ),
    )  # fmt: skip


def _write(path: Path, content: bytes) -> None:
    with keeping(path):
        write_atomically(path, content)
