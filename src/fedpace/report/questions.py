"""Answers questions about recorded runs: times to another target, and each scheme's metric at a given time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from fedpace._base.checks import one_of
from fedpace._base.errors import InputError
from fedpace.records.holding import Looks
from fedpace.records.run import RunRecord, plain
from fedpace.report import numbers
from fedpace.report.estimates import Estimate, metric_estimate
from fedpace.report.grouping import group
from fedpace.report.numbers import UNKNOWN


def retarget(
    runs: Sequence[RunRecord], target: float | None, hold: int | None = None, looks: str | None = None
) -> list[RunRecord]:
    """Return runs as if this had been their target, held over so many instants from such times; None = as it was.

    Nothing is run: a run that ended because it held an easier target is censored where it does not hold a harder one.
    """
    if target is not None and not math.isfinite(target):
        raise InputError(f"--target must be a number, but {target} came")
    if hold is not None and hold < 1:
        raise InputError(f"--hold counts instants, of which there is at least one, but {hold} came")
    if looks is not None:
        one_of(looks, get_args(Looks), "--looks")
    changes: dict[str, Any] = {"target": target, "hold": hold, "looks": looks}
    changes = {name: value for name, value in changes.items() if value is not None}
    if not changes:
        return list(runs)
    return [RunRecord(dataclasses.replace(run.info, **changes), run.rounds) for run in runs]


@dataclass(frozen=True)
class Instant:
    """The metric of every scheme at a given time."""

    seconds: float
    metric: str
    schemes: dict[str, Estimate | None]
    """Metric by label, over seeds; a run that had ended by then keeps its last value."""

    def as_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        content: dict[str, Any] = plain(dataclasses.asdict(self))
        return content

    def sentence(self) -> str:
        """Return it in words."""
        said = [f"{label} {_shown(value)}" for label, value in self.schemes.items()]
        return f"{self.metric.capitalize()} after {numbers.seconds(self.seconds)}: {', '.join(said)}."


def at_time(runs: Sequence[RunRecord], seconds: float) -> Instant:
    """Return the metric of every scheme at a time, as its model was then."""
    if not (math.isfinite(seconds) and seconds >= 0):
        raise InputError(f"--at takes seconds of virtual time, 0 or more, but {seconds} came")
    found = {}
    for label, members in group(runs).items():
        values = [value for run in members if (value := _metric_at(run, seconds)) is not None]
        found[label] = metric_estimate(values, runs[0].info.metric)
    return Instant(float(seconds), runs[0].info.metric, found)


def _metric_at(run: RunRecord, seconds: float) -> float | None:
    known = [current.metric for current in run.evaluated if current.clock <= seconds]
    return known[-1] if known else None


def _shown(value: Estimate | None) -> str:
    if value is None:
        return UNKNOWN
    shown = numbers.metric(value.mean)
    if value.low is None or value.high is None:
        return shown
    return f"{shown} ({numbers.span(numbers.metric(value.low), numbers.metric(value.high))})"
