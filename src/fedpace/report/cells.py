"""The columns and cells of a comparison's tables as text, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fedpace.report import numbers
from fedpace.report.estimates import LEAST, Estimate
from fedpace.report.numbers import TIMES, UNKNOWN
from fedpace.report.tables import Comparison, SchemeSummary

Tone = Literal["plain", "best", "partial", "failed"]


@dataclass(frozen=True)
class Cell:
    """A value, and a note in small print below it."""

    text: str
    note: str = ""
    tone: Tone = "plain"


@dataclass(frozen=True)
class Column:
    """A column: a heading of two short lines, and the function that returns a scheme's cell."""

    heading: str
    sub: str
    fill: Callable[[SchemeSummary], Cell]
    number: bool = True
    spare: int = 0
    """In a narrow window, columns with the largest number are left out first; 0 = never left out."""

    @property
    def title(self) -> str:
        """Both lines of the heading as one."""
        return f"{self.heading} {self.sub}".strip()


def columns(comparison: Comparison, *, wide: bool = False) -> list[Column]:
    """Return the columns that are not empty for this comparison; `wide` adds median and minimum over seeds."""
    metric = comparison.metric
    found = [Column("Scheme", "", lambda s: _scheme(s, comparison), number=False)]
    if len({scheme.runs for scheme in comparison.schemes}) > 1:
        found.append(Column("Seeds", "", lambda s: Cell(f"{s.runs:,}")))
    if comparison.target is not None:
        found.append(Column("Time to", "target", lambda s: _time(s, comparison)))
        if comparison.hold > 1:
            found.append(Column("First", "crossing", _first, spare=2))
        if wide and any(scheme.runs > 1 for scheme in comparison.schemes):
            found.append(Column("Median", "of all runs", lambda s: Cell(_or_unknown(s.median_time, numbers.seconds))))
            found.append(Column("Fastest", "run", lambda s: Cell(_or_unknown(s.min_time, numbers.seconds))))
        if comparison.baseline is not None and len(comparison.schemes) > 1:
            found.append(Column("Speed-up", "", lambda s: _speed_up(s, comparison)))
        found.append(
            Column("Rounds", "needed", lambda s: Cell(_or_unknown(s.rounds_to_target, numbers.average)), spare=3)
        )
    else:
        found.append(Column("Final", metric, lambda s: _final(s, comparison)))
    if not any(scheme.cost.known for scheme in comparison.schemes):
        found.append(_clients())
    if wide or comparison.target is None or comparison.hold == 1:  # a terminal has room for eight columns
        found.append(
            Column("Seconds", "per round", lambda s: Cell(_or_unknown(s.round_seconds, numbers.digits)), spare=4)
        )
    if comparison.target is not None:
        found.append(
            Column("Final", metric, lambda s: Cell(numbers.metric(s.final.mean) if s.final else UNKNOWN), spare=1),
        )
    if any(scheme.diverged for scheme in comparison.schemes):
        found.append(Column("Diverged", "runs", _diverged))
    return found


def cost_columns(comparison: Comparison) -> list[Column]:
    """Return the columns of costs other than time; empty if no run records them."""
    if not any(scheme.cost.known for scheme in comparison.schemes):
        return []
    return [
        Column("Scheme", "", lambda s: _scheme(s, comparison), number=False),
        _clients(),
        Column("Client", "work", lambda s: _work(s, comparison)),
        Column("Tasks", "wasted", lambda s: Cell(_or_unknown(s.cost.wasted, numbers.percent)), spare=1),
        Column("Sent to", "clients", lambda s: Cell(_or_unknown(s.cost.bytes_down, numbers.size)), spare=4),
        Column("Sent by", "clients", lambda s: Cell(_or_unknown(s.cost.bytes_up, numbers.size)), spare=3),
        Column("Slowest", "tenth", lambda s: Cell(_estimated(s.cost.slowest)), spare=2),
    ]


def cost_legend(comparison: Comparison) -> str:
    """Return how to read the table of costs."""
    until = "" if comparison.target is None else " until the target is held, or to the end of a run that never does"
    return (
        f"Cost of a run{until}. Client work: seconds that all clients together spent on tasks. Wasted: tasks that "
        "failed or were given up. Slowest tenth: "
        f"final {comparison.metric} on the data of the tenth of the clients with the longest expected delays."
    )


def _clients() -> Column:
    return Column("Clients", "per round", lambda s: Cell(_or_unknown(s.clients_per_round, numbers.average)), spare=5)


def _work(scheme: SchemeSummary, comparison: Comparison) -> Cell:
    work = scheme.cost.work
    if work is None:
        return Cell(UNKNOWN)
    ranked = [s.cost.work for s in comparison.schemes if s.always_reached or comparison.target is None]
    known = [each.mean for each in ranked if each is not None]
    least = len(known) > 1 and work.mean == min(known)
    return Cell(numbers.seconds(work.mean), numbers.between(work) or "", "best" if least else "plain")


def _estimated(value: Estimate | None) -> str:
    return UNKNOWN if value is None else numbers.metric(value.mean)


def caption(comparison: Comparison) -> str:
    """Return the caption above the table."""
    counts = {scheme.runs for scheme in comparison.schemes}
    parts = [numbers.counted(len(comparison.schemes), "scheme")]
    if len(counts) == 1:
        parts.append(numbers.counted(counts.pop(), "seed"))
    if comparison.target is None:
        parts.append("no target")
    else:
        sign = "≥" if comparison.direction == "up" else "≤"
        held = f", held over {comparison.hold} instants" if comparison.hold > 1 else ""
        parts.append(f"target {comparison.metric} {sign} {numbers.given(comparison.target)}{held}")
    return " · ".join([*parts, *comparison.conditions])


def legend(comparison: Comparison) -> str:
    """Return how to read the table."""
    most = max(scheme.runs for scheme in comparison.schemes)
    said = "One seed, so no intervals"
    if most > 1:
        said = "Means over seeds, " + ("95 % intervals below them" if most >= LEAST else "too few for intervals")
    if comparison.baseline is not None and len(comparison.schemes) > 1:
        said += f". Speed-up: over {comparison.baseline}, seed by seed"
    if any(scheme.censored for scheme in comparison.schemes):
        said += ". Stopped before: run for an easier target, and ended with it"
    return said + "."


def _scheme(scheme: SchemeSummary, comparison: Comparison) -> Cell:
    # In brackets: alone on its line it would read like the name of another scheme.
    # A label such as random(k=5) names its scheme already.
    notes = [] if f"{scheme.label}(".startswith(f"{scheme.selector}(") else [f"({scheme.selector})"]
    if scheme.unfinished:
        notes.append(f"{scheme.unfinished} unfinished")
    return Cell(scheme.label, ", ".join(notes), "best" if scheme.label == comparison.best else "plain")


def _time(scheme: SchemeSummary, comparison: Comparison) -> Cell:
    time = scheme.time_to_target
    if time is None or not scheme.always_reached:
        return missed(scheme)
    tone: Tone = "best" if scheme.label == comparison.best else "plain"
    return Cell(numbers.seconds(time.mean), numbers.between(time) or "", tone)


def missed(scheme: SchemeSummary) -> Cell:
    """Return what stands for the time of a scheme that did not reach the target in every run."""
    time, notes = scheme.time_to_target, []
    if scheme.censored == scheme.runs:
        return Cell("stopped before", "", "partial")
    if time is not None:
        notes.append(f"those: {numbers.seconds(time.mean)}")
    if scheme.censored:
        notes.append(f"{scheme.censored} stopped before")
    if time is None:
        return Cell("not reached", ", ".join(notes), "failed")
    return Cell(f"{scheme.reached} of {scheme.runs} reached", ", ".join(notes), "partial")


def _first(scheme: SchemeSummary) -> Cell:
    if scheme.first_crossing is None:
        return Cell("never", "", "failed")
    note = "" if scheme.crossed == scheme.runs else f"{scheme.crossed} of {scheme.runs} runs"
    return Cell(numbers.seconds(scheme.first_crossing.mean), note)


def _speed_up(scheme: SchemeSummary, comparison: Comparison) -> Cell:
    if scheme.label == comparison.baseline:
        return Cell(f"1{TIMES}") if scheme.reached else Cell(UNKNOWN)
    ratio = scheme.speed_up
    if ratio is None:
        return Cell(UNKNOWN)
    notes = [numbers.between(ratio) or ""]
    if ratio.count < scheme.runs:
        # Said in the cell, since seeds in which one of the two failed are those where the ratio would be extreme.
        notes.append(f"{ratio.count} of {scheme.runs} seeds")
    return Cell(f"{numbers.digits(ratio.mean)}{TIMES}", ", ".join(note for note in notes if note))


def _final(scheme: SchemeSummary, comparison: Comparison) -> Cell:
    if scheme.final is None:
        return Cell(UNKNOWN)
    final = scheme.final
    ends = ""
    if final.low is not None and final.high is not None:
        ends = numbers.span(numbers.metric(final.low), numbers.metric(final.high))
    return Cell(numbers.metric(scheme.final.mean), ends, "best" if scheme.label == comparison.best else "plain")


def _diverged(scheme: SchemeSummary) -> Cell:
    return Cell(f"{scheme.diverged} of {scheme.runs}", "", "failed") if scheme.diverged else Cell("0")


def _or_unknown(value: float | None, show: Callable[[float], str]) -> str:
    return UNKNOWN if value is None else show(value)
