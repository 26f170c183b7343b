"""The paper's claim in three numbers, from its tables and from ours: cells won, and two speed-ups.

The speed-ups are over random and over the fastest baseline of each cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fedpace.reproduce import plans
from fedpace.reproduce.columns import COLUMNS
from fedpace.reproduce.outcomes import Results
from fedpace.reproduce.paper import COLUMNS as PRINTED
from fedpace.reproduce.paper import OWN, PAPER
from fedpace.reproduce.plans import Request
from fedpace.reproduce.tables import Cell, Table, fastest

BASELINES = tuple(label for label in PRINTED if label not in OWN)
OTHERS = ("exact", "fedbuff")
"""Columns that are neither the paper's nor ours."""
Seconds = Mapping[str, float | None]
"""By scheme, in one cell; None = not reached, and not there = not run."""


@dataclass(frozen=True)
class Standing:
    """How a scheme, or the better of several, did over the cells."""

    cells: int
    """In which it was run."""
    arrived: int
    """In which it reached the target."""
    fastest: int
    """In which it was faster than every baseline."""
    over_random: float | None
    """Geometric mean over the cells in which both arrived."""
    over_baseline: float | None
    """The same over the fastest baseline of the cell."""


def standing(cells: Mapping[str, Seconds], schemes: tuple[str, ...], rivals: tuple[str, ...] = BASELINES) -> Standing:
    """Return how the faster of `schemes` stands against `rivals`, cell by cell."""
    run = arrived = won = 0
    random: list[float] = []
    best: list[float] = []
    for seconds in cells.values():
        if not any(scheme in seconds for scheme in schemes) or not all(rival in seconds for rival in rivals):
            continue
        run += 1
        own = fastest({scheme: seconds.get(scheme) for scheme in schemes})
        mine = None if own is None else seconds[own]
        if mine is None:
            continue
        arrived += 1
        rival = fastest({label: seconds[label] for label in rivals})
        other = None if rival is None else seconds[rival]
        won += other is None or mine < other
        if other and mine:  # a target that the first model meets says nothing
            best.append(math.log(other / mine))
        if mine and (slow := seconds.get("random")):
            random.append(math.log(slow / mine))
    return Standing(run, arrived, won, _geometric(random), _geometric(best))


def printed_cells(tasks: Iterable[str] = tuple(PAPER.tables["table1_synthetic_delays"])) -> dict[str, Seconds]:
    """Return the eighteen cells as the paper has them, or those of some data sets."""
    return {
        f"{table}/{task}": {label: PAPER.seconds(task, delays, label) for label in PRINTED}
        for table, delays in plans.DELAYS.items()
        for task in tasks
    }


def our_cells(request: Request, results: Results) -> dict[str, Seconds]:
    """Return the cells that were run."""
    found: dict[str, Seconds] = {}
    for table in plans.DELAYS:
        for task in request.tasks:
            entries = {column.label: results[f"{table}/{task.name}/{column.label}"] for column in request.columns}
            found[f"{table}/{task.name}"] = {label: each.seconds for label, each in entries.items() if each.run}
    return found


def headline_table(request: Request, results: Results) -> Table:
    """Return the headline: the paper's schemes by its tables and by ours, then ours."""
    ours = our_cells(request, results)
    printed = printed_cells([task.name for task in request.tasks])
    titles = {column.label: column.title for column in COLUMNS}
    others = [column for column in request.columns if column.label not in PRINTED]
    rows = [
        _row("The better of the paper's two schemes, its figures", standing(printed, OWN)),
        _row("The better of the paper's two schemes, here", standing(ours, OWN)),
    ]
    for label in OWN:
        rows.append(_row(f"{titles[label]}, the paper's figures", standing(printed, (label,))))
        rows.append(_row(f"{titles[label]}, here", standing(ours, (label,))))
    rows += [_row(f"{column.title}, here", standing(ours, (column.label,))) for column in others]
    rivals = tuple(label for label in (*PRINTED, *OTHERS) if any(label in cell for cell in ours.values()))
    rows += [
        _row(f"{column.title}, against all that is not ours", standing(ours, (column.label,), rivals))
        for column in others
        if column.camp == "ours"
    ]
    return Table(
        "Against the paper's five baselines, cell by cell",
        ("Scheme", "Cells run", "Arrives", "Fastest in", "Over random", "Over the best baseline"),
        tuple(rows),
        (
            "Geometric means over the cells in which both arrive; a scheme arrives in a cell where all seeds that were "
            "run do. The best baseline is the fastest of random, FLANP, DivFL, Power-of-Choice and ApproxOpt in that "
            "cell; in the last rows the paper's two schemes, the exact set and FedBuff are among them.",
        ),
    )


def _row(title: str, found: Standing) -> tuple[Cell, ...]:
    times: Callable[[float | None], Cell] = lambda value: Cell("" if value is None else f"{value:.2f}x")  # noqa: E731
    return (
        Cell(title),
        Cell(str(found.cells)),
        Cell(str(found.arrived)),
        Cell(str(found.fastest)),
        times(found.over_random),
        times(found.over_baseline),
    )


def _geometric(logs: list[float]) -> float | None:
    return math.exp(float(np.mean(logs))) if logs else None
