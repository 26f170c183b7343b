"""Runs that are given up once a rival is certainly far behind: what they know is a lower bound on its time.

A grid with every rival run to its end spends most of its time on the slowest of them, and what it learns there changes
no verdict: the best rival of a cell is the one that takes least. So a run may end once the target cannot be held any
more within N times the longest time that a named scheme took in the cell. Its row is `cut`, says beyond which time the
target would be held (`beyond`), and counts with that time: too soon, never too late. Nothing of it can flatter the
scheme that is judged. Where the best rival is such a run, the factor over it is a lower bound, and is marked as one.

A run may also end once it is slower, by this measure, than the best rival that is recorded: it cannot be the best then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from grid.cells import Cell
from grid.runs import Row
from grid.schemes import Scheme
from grid.tuning import Tuned, key


@dataclass(frozen=True)
class Economy:
    """When runs are given up."""

    times: float = 0.0
    """How many times as long as the yardstick they may take."""
    held: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """Seconds that the yardstick took, by cell and seed: not there where it missed under any seed."""
    beat: Mapping[str, float] = field(default_factory=dict)
    """Times as long as the yardstick the best rival so far takes to the hard target, by cell."""

    @classmethod
    def of(cls, rows: Iterable[Row], yardstick: Scheme, cells: Iterable[Cell], tuned: Tuned, times: float) -> Economy:
        """Return what follows from the yardstick's runs so far, as it is tuned now."""
        rows, held = list(rows), {}
        for cell in cells:
            given = tuned.scheme(yardstick, cell)
            wanted = {
                "cell": cell.name,
                "scheme": given.label,
                "options": dict(given.options),
                "lr": tuned.rate(cell) * given.factor,
                "mode": "charged",
            }
            found = {
                row["seed"]: row["hard"]["seconds"]
                for row in rows
                if row["cell"] == cell.name and key({**wanted, "seed": row["seed"]}) == key(row)
            }
            if found and None not in found.values():
                held[cell.name] = found
        return cls(times, held)

    @property
    def cuts(self) -> dict[str, float]:
        """Seconds, by cell, beyond which runs are given up: after the longest time under any seed."""
        return {cell: self.times * max(by.values()) for cell, by in self.held.items()}

    def limits(self, seed: int) -> dict[str, float]:
        """Return the seconds, by cell, beyond which the runs of a seed are given up."""
        found = dict(self.cuts)
        for cell, by in self.held.items():
            if cell in self.beat and seed in by:
                found[cell] = min(found[cell], self.beat[cell] * by[seed])
        return found

    def serves(self, row: Row) -> bool:
        """Whether a run need not be made again: it ended by itself, or was given up late enough for its own seed."""
        if row["status"] != "cut":
            return True
        by = self.held.get(row["cell"])
        times = min(self.times, self.beat.get(row["cell"], self.times))
        return by is not None and bool(row["hard"]["beyond"] >= times * by.get(row["seed"], max(by.values())))

    def par(self, random: Row | None) -> float | None:
        """Return how long random takes to the hard target, which says how long others may; None = it missed it.

        Where runs are given up random does not say it: it may not have run yet, and may have been given up itself.
        """
        if random is None:
            return math.inf if self.times else None
        seconds: float | None = random["hard"]["seconds"]
        return math.inf if random["status"] == "cut" else seconds


def known(row: Row, level: str, measure: str) -> float | None:
    """Return when a target was held (or first met), or the time that it certainly was not before; None = missed."""
    seconds: float | None = row[level][measure]
    return lower_bound(row, level, measure) if seconds is None else seconds


def lower_bound(row: Row, level: str, measure: str) -> float | None:
    """Return what is known of a run that was given up before the target was held; None = there is no such."""
    if row.get("status") != "cut" or row[level][measure] is not None:
        return None
    return float(row["clock"] if measure == "first" else row[level].get("beyond", math.nan))
