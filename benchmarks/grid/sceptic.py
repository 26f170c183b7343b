"""The tables that a sceptic would ask for: one scheme against every other, in every cell, by the rule that suits it
least.

A rival that misses a target under some seeds has no mean time. Calling it failed there, as `analysis.py` does, takes a
rival out of the cells in which it is fast when it arrives. Here it stays in: it counts by the seeds under which it held
the target, paired with the same seeds of the scheme that is judged, as long as these are more than half. The best rival
of a cell is the one over which the factor is least, chosen after the fact. A run that was given up counts with the time
that it certainly took.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from scipy import stats

from fedpace.report.numbers import counted
from grid import economy
from grid.analysis import Measure, ratio
from grid.cells import LEVELS
from grid.markdown import AT_LEAST, NOTHING, table
from grid.runs import Row
from grid.schemes import BASELINE, Camp, camp

CLOSE = 1.1
"""A scheme that takes at most this many times as long as the first counts as being with it."""
SIGN = 0.05
"""One-sided level of the sign test, for pairs with runs that were given up: five of five seeds have 0.031."""


@dataclass(frozen=True)
class Factor:
    """How many times as long as the judged scheme another takes in a cell, over the seeds that both held."""

    label: str
    cell: str
    mean: float
    low: float
    high: float
    seeds: int
    missed: int
    """Seeds under which the other missed the target."""
    bound: bool
    """Whether some of its runs were given up: the factor is at least this."""
    ahead: int
    """Seeds under which the judged scheme is certainly ahead: given-up runs count if their bound says so."""
    seconds: float
    """Geometric mean of the other's time, over the same seeds."""

    @property
    def counts(self) -> bool:
        """Whether it held the target under more than half of the seeds."""
        return 2 * self.seeds > self.seeds + self.missed

    @property
    def clear(self) -> bool:
        """Whether the factor differs from 1 by more than chance; one seed has no interval.

        Without given-up runs, the 95 % interval decides. A given-up run may have taken any time beyond its bound, so
        that no interval of the mean is valid: bounds at one multiple of our own times even make it look narrow. The
        signs of such pairs are known, so the sign test decides (one-sided, 5 %: ahead under all of five seeds), and the
        interval of the bounds must exclude 1 too. Behind a rival with given-up runs nobody is clearly.
        """
        if self.seeds < 2 or self.low <= 1 <= self.high:
            return False
        if not self.bound:
            return True
        return self.mean > 1 and bool(stats.binomtest(self.ahead, self.seeds, alternative="greater").pvalue <= SIGN)

    @property
    def text(self) -> str:
        """With its interval."""
        mark = AT_LEAST if self.bound else ""
        missed = f", missed in {self.missed}" if self.missed else ""
        spread = f" ({self.low:.2f} to {self.high:.2f})" if self.seeds > 1 else ""
        if self.bound:  # an interval of lower bounds says nothing about the factor
            spread = f", ahead under {self.ahead} of {self.seeds}"
        return f"{mark}{self.mean:.2f}{spread}{missed}"


class Judged:
    """One scheme against all others, cell by cell."""

    def __init__(self, rows: Iterable[Row], flagship: str, measure: Measure = "seconds") -> None:
        self.flagship = flagship
        self.camps: dict[str, Camp] = {}
        self.options: dict[tuple[str, str], Mapping[str, Any]] = {}
        """By cell, without its level, and label."""
        self.seconds: dict[str, float] = {}
        """Geometric mean of the judged scheme's time, by cell."""
        self.missed: dict[str, int] = {}
        """Seeds under which it missed the target itself, by cell."""
        self.factors: dict[str, dict[str, Factor]] = {}
        """By cell and label."""
        self.highest: dict[str, float] = {}
        """Highest loss of any run of the judged scheme over its first loss, by cell without its level."""
        table: dict[str, dict[str, dict[int, Row]]] = {}
        for row in rows:
            if row["mode"] == "charged":
                table.setdefault(row["cell"], {}).setdefault(row["scheme"], {})[row["seed"]] = row
                self.camps[row["scheme"]] = camp(row["scheme"], row["selector"])
                self.options[row["cell"], row["scheme"]] = row["options"]
                if row["scheme"] == flagship and row.get("highest_loss") is not None:
                    self.highest[row["cell"]] = max(row["highest_loss"], self.highest.get(row["cell"], 0.0))
        for name in sorted(table):
            for level in LEVELS:
                if flagship in table[name]:
                    self._cell(f"{name}/{level}", level, table[name], measure)

    def _cell(self, cell: str, level: str, schemes: Mapping[str, Mapping[int, Row]], measure: Measure) -> None:
        ours = {seed: row[level][measure] for seed, row in schemes[self.flagship].items()}
        held = {seed: seconds for seed, seconds in ours.items() if seconds is not None}
        self.missed[cell] = len(ours) - len(held)
        self.seconds[cell] = _mean(held.values())
        self.factors[cell] = {}
        for label, by in schemes.items():
            known = {seed: economy.known(row, level, measure) for seed, row in by.items() if seed in held}
            times = {seed: seconds for seed, seconds in known.items() if seconds is not None}
            if label == self.flagship or not known:
                continue
            nowhere = dict.fromkeys(("mean", "low", "high"), math.inf)
            found = ratio(times, {seed: held[seed] for seed in times}) or nowhere
            self.factors[cell][label] = Factor(
                label,
                cell,
                found["mean"],
                found["low"],
                found["high"],
                seeds=len(times),
                missed=len(known) - len(times),
                bound=any(by[seed][level][measure] is None for seed in times),
                ahead=sum(times[seed] > held[seed] for seed in times),
                seconds=_mean(times.values()),
            )

    def over(self, label: str, cell: str) -> Factor | None:
        """Return the factor over one scheme in a cell."""
        return self.factors[cell].get(label)

    def best(self, cell: str, *camps: Camp) -> Factor | None:
        """Return the factor over the best of these camps in a cell: the least of those that count."""
        found = [each for each in self.factors[cell].values() if self.camps[each.label] in camps and each.counts]
        return min(found, key=lambda each: each.mean, default=None)

    def to_beat(self) -> dict[str, float]:
        """Return the factor over the best rival at the hard target, by cell without its level."""
        best = {cell: self.best(f"{cell}/hard", "baseline", "paper") for cell in self.without_levels()}
        return {cell: found.mean for cell, found in best.items() if found is not None}

    def without_levels(self) -> list[str]:
        """Return the names of the cells without their levels."""
        return list(dict.fromkeys(cell.rpartition("/")[0] for cell in self.factors))

    def cells(self, *pieces: str) -> list[str]:
        """Return the cells whose names have all of these parts."""
        return [cell for cell in self.factors if all(piece in cell.split("/") for piece in pieces)]

    def delays(self) -> list[str]:
        """Return the names of the delay models."""
        return sorted({cell.split("/")[1] for cell in self.factors})

    def tasks(self) -> list[str]:
        """Return the names of the tasks."""
        return sorted({cell.split("/")[0] for cell in self.factors})


def page(rows: Sequence[Row], flagship: str, measure: Measure = "seconds") -> str:
    """Return all tables, the shortest first."""
    judged = Judged(rows, flagship, measure)
    return "\n\n".join([front(judged), by_task(judged), by_scheme(judged), every_cell(judged)])


def front(judged: Judged) -> str:
    """One line per kind of rival, one column per delay model."""
    lines: list[tuple[str, Callable[[str], Factor | None]]] = [
        ("the best rival of each cell", lambda cell: judged.best(cell, "baseline", "paper")),
        ("the best control (`+steps`) of each cell", lambda cell: judged.best(cell, "control")),
    ]
    ours = [label for label, whose in judged.camps.items() if whose == "ours" and label != judged.flagship]
    for name, label in (("`pace`", "pace"), ("`pace-async`", "pace-async"), ("random with ten clients", BASELINE)):
        if label in ours or label == BASELINE:
            lines.append((name, partial(judged.over, label)))
    head = [f"`{judged.flagship}` over", *judged.delays(), "ahead in", "clearly", "clearly behind in", "least"]
    rows = []
    for name, pick in lines:
        by = {delays: [pick(cell) for cell in judged.cells(delays)] for delays in judged.delays()}
        found = [each for some in by.values() for each in some if each is not None]
        if found:
            rows.append([name, *(_overall(some) for some in by.values()), *_standing(found)])
    return table(head, rows)


def by_task(judged: Judged) -> str:
    """One line per task and delay model."""
    head = ["task", "delays", "over the best rival", "which is", "over the best control", "which is", "over `pace`"]
    rows = []
    for task in judged.tasks():
        for delays in judged.delays():
            cells = judged.cells(task, delays)
            rivals = [judged.best(cell, "baseline", "paper") for cell in cells]
            controls = [judged.best(cell, "control") for cell in cells]
            pace = [judged.factors[cell].get("pace") for cell in cells]
            if cells:
                several = [_overall(rivals), _names(rivals), _overall(controls), _names(controls), _overall(pace)]
                rows.append([task, delays, *several])
    return table(head, rows)


def by_scheme(judged: Judged) -> str:
    """One line per other scheme, the closest first: the factor over it where it counts, and where it is ahead."""
    head = [
        f"`{judged.flagship}` over",
        *judged.delays(),
        "seeds",
        "cells",
        "the other is ahead in",
        "clearly",
        "misses half of the seeds or more in",
    ]
    rows = []
    for label in judged.camps:
        every = [by[label] for by in judged.factors.values() if label in by]
        found = [each for each in every if each.counts]
        if not every:
            continue
        ahead = [each for each in found if each.mean < 1]
        by = [[each for each in found if each.cell.split("/")[1] == delays] for delays in judged.delays()]
        seeds = str(min(each.seeds + each.missed for each in every))
        cells = [seeds, str(len(every)), str(len(ahead)), str(sum(each.clear for each in ahead))]
        line = [f"`{label}`", *(_overall(some) for some in by), *cells, str(len(every) - len(found))]
        rows.append((_mean(each.mean for each in found) if found else math.inf, line))
    return table(head, [line for _, line in sorted(rows, key=lambda row: row[0])])


def by_level(judged: Judged) -> str:
    """One line per other scheme, the slowest first: how many times as long it takes, to easy and to hard targets."""
    head = ["", "easy", "hard", "pairs of runs", "missed or given up"]
    rows = []
    for label in judged.camps:
        every = [by[label] for by in judged.factors.values() if label in by]
        found = {level: [each for each in every if each.cell.endswith(level) and each.seeds] for level in LEVELS}
        if not any(found.values()):
            continue
        pairs = sum(each.seeds + each.missed for each in every)
        ended = sum(each.missed for each in every), sum(each.bound for each in every)
        bounds = {level: any(each.bound or each.missed for each in some) for level, some in found.items()}
        means = {level: _mean(each.mean for each in some) for level, some in found.items()}
        shown = [f"{AT_LEAST if bounds[level] else ''}{means[level]:.2f}" for level in LEVELS]
        line = [
            f"`{label.rpartition(':')[2]}`",
            *shown,
            str(pairs),
            f"{counted(ended[0], 'run')}; {counted(ended[1], 'cell')}" if any(ended) else "0",
        ]
        rows.append((means["hard"], line))
    return table(head, [line for _, line in sorted(rows, key=lambda row: -row[0])])


def by_federation(judged: Judged) -> str:
    """One line per cell: the first of all schemes, our own other one included, and how the judged scheme compares."""
    head = ["federation", judged.flagship, "the first of the others", "times as long as it", "highest loss / first"]
    rows, within = [], 0
    for cell in judged.factors:
        name, _, level = cell.rpartition("/")
        first = judged.best(cell, "baseline", "paper", "ours")
        missed = f", missed in {judged.missed[cell]}" if judged.missed[cell] else ""
        rank = NOTHING if first is None else f"{'≤ ' if first.bound else ''}{1 / first.mean:.2f}"
        within += first is None or 1 / first.mean <= CLOSE
        described = (
            NOTHING if first is None else f"{first.label} {AT_LEAST if first.bound else ''}{first.seconds:,.0f} s"
        )
        high = f"{judged.highest[name]:.2f}" if name in judged.highest else NOTHING
        rows.append([f"{name}, {level}", f"{judged.seconds[cell]:,.0f} s{missed}", described, rank, high])
    total = sum(judged.missed.values())
    said = f"First or within 10 % of the first in {within} of {len(rows)}; {total} targets missed."
    return f"{table(head, rows)}\n\n{said}"


def every_cell(judged: Judged) -> str:
    """One line per cell."""
    head = ["cell", judged.flagship, "best rival", "factor", "best control", "factor", "over `pace`"]
    rows = []
    for cell in judged.factors:
        rival, control = judged.best(cell, "baseline", "paper"), judged.best(cell, "control")
        pace = judged.factors[cell].get("pace")
        seconds = f"{judged.seconds[cell]:,.0f} s" + (
            f", missed in {judged.missed[cell]}" if judged.missed[cell] else ""
        )
        said = [part for each in (rival, control) for part in (_described(judged, each), _text(each))]
        rows.append([cell, seconds, *said, _text(pace)])
    return table(head, rows)


def _described(judged: Judged, found: Factor | None) -> str:
    if found is None:
        return NOTHING
    options = judged.options[found.cell.rpartition("/")[0], found.label]
    given = ", ".join(f"{key} {value}" for key, value in options.items())
    seconds = f"{AT_LEAST if found.bound else ''}{found.seconds:,.0f} s"
    return f"{found.label} ({given}) {seconds}" if given else f"{found.label} {seconds}"


def _text(found: Factor | None) -> str:
    return NOTHING if found is None else found.text


def _overall(found: Iterable[Factor | None]) -> str:
    known = [each for each in found if each is not None and each.counts]
    if not known:
        return NOTHING
    return f"{AT_LEAST if any(each.bound for each in known) else ''}{_mean(each.mean for each in known):.2f}x"


def _standing(found: Sequence[Factor]) -> list[str]:
    known = [each for each in found if each.counts]
    least = min(known, key=lambda each: each.mean)
    return [
        f"{sum(each.mean >= 1 for each in known)} of {len(known)}",
        str(sum(each.clear and each.mean > 1 for each in known)),
        str(sum(each.clear and each.mean < 1 for each in known)),
        f"{least.text}, {least.label}, {least.cell}",
    ]


def _names(found: Iterable[Factor | None]) -> str:
    labels = [each.label for each in found if each is not None]
    return ", ".join(sorted(set(labels), key=lambda label: (-labels.count(label), label)))


def _mean(values: Iterable[float]) -> float:
    logs = [math.log(max(value, 1e-3)) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan
