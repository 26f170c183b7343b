"""Merges the seeds of a scheme into one curve, over virtual time, rounds or client work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace.records.run import RunRecord
from fedpace.report.costs import work_so_far
from fedpace.report.grouping import group
from fedpace.report.tables import Comparison, SchemeSummary

MAX_POINTS = 600
"""Of a curve: more than a screen shows, and few enough to keep the page small."""


@dataclass(frozen=True)
class Curve:
    """A step curve: `mean[i]` holds from `x[i]` until `x[i + 1]`."""

    x: FloatArray
    mean: FloatArray
    low: FloatArray
    high: FloatArray

    def arrival(self, at: float | None) -> tuple[float, float]:
        """Return the point of the curve at `at`, from where the target is held; None = its end."""
        if at is None:
            return float(self.x[-1]), float(self.mean[-1])
        return at, float(self.mean[max(0, int(np.searchsorted(self.x, at, side="right")) - 1)])


def metric_over_time(runs: Sequence[RunRecord]) -> Curve | None:
    """Return the metric of a scheme's runs over virtual seconds."""
    chosen = _telling(runs)
    return _merge([(_evaluated(run, "clock"), _evaluated(run, "metric")) for run in chosen])


def metric_over_rounds(runs: Sequence[RunRecord]) -> Curve | None:
    """Return the metric of a scheme's runs over rounds."""
    chosen = _telling(runs)
    return _merge([(_evaluated(run, "number"), _evaluated(run, "metric")) for run in chosen])


def metric_over_work(runs: Sequence[RunRecord]) -> Curve | None:
    """Return the metric of a scheme's runs over client-seconds of work; None where no run says how many there were."""
    found = []
    for run in _telling(runs):
        spent = work_so_far(run)
        if spent is not None:
            at = [work for work, current in zip(spent, run.rounds, strict=True) if current.metric is not None]
            found.append((np.array(at), _evaluated(run, "metric")))
    return _merge(found)


def cohort_over_rounds(runs: Sequence[RunRecord]) -> Curve | None:
    """Return how many clients were chosen in each round, over the runs that had that round."""
    sizes = [np.array([len(r.clients) for r in run.rounds if r.number > 0], dtype=np.float64) for run in runs]
    longest = max((len(size) for size in sizes), default=0)
    if longest == 0:
        return None
    rounds = _thin(np.arange(longest, dtype=np.float64)).astype(np.int64)
    at = [np.array([size[i] for size in sizes if i < len(size)]) for i in rounds]
    return Curve(
        x=rounds.astype(np.float64) + 1,
        mean=np.array([values.mean() for values in at]),
        low=np.array([values.min() for values in at]),
        high=np.array([values.max() for values in at]),
    )


def by_scheme(runs: Sequence[RunRecord], comparison: Comparison) -> list[tuple[SchemeSummary, list[RunRecord]]]:
    """Return the schemes in the order of the comparison, each with its runs."""
    groups = group(runs)
    return [(scheme, groups[scheme.label]) for scheme in comparison.schemes]


def left_edge(curves: Sequence[Curve]) -> float:
    """Return a positive time to stand for 0 on a logarithmic axis: somewhat before anything happens."""
    firsts = [float(curve.x[curve.x > 0].min()) for curve in curves if (curve.x > 0).any()]
    return min(firsts) / 1.5 if firsts else 1.0


def _telling(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Leave diverged runs out of a mean, unless there are no others: their last good value is not where they stayed."""
    sound = [run for run in runs if run.info.status != "diverged" and run.evaluated]
    return sound or [run for run in runs if run.evaluated]


def _merge(runs: list[tuple[FloatArray, FloatArray]]) -> Curve | None:
    """Merge on a common grid. A run that has ended keeps its last value: its model is there to be used."""
    if not runs:
        return None
    grid = _thin(np.unique(np.concatenate([x for x, _ in runs])))
    rows = []
    for x, y in runs:
        position = np.searchsorted(x, grid, side="right") - 1
        rows.append(y[np.maximum(position, 0)])
    values = np.vstack(rows)
    return Curve(grid, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def _evaluated(run: RunRecord, name: str) -> FloatArray:
    """A column of the rounds that were evaluated: between them the curve keeps its value, as a step curve does."""
    return np.array([getattr(current, name) for current in run.evaluated], dtype=np.float64)


def _thin(grid: FloatArray) -> FloatArray:
    """Return at most MAX_POINTS of the grid, with both ends; dense where rounds are dense."""
    if len(grid) <= MAX_POINTS:
        return grid
    return grid[np.linspace(0, len(grid) - 1, MAX_POINTS).round().astype(np.int64)]
