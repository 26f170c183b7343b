"""Costs of a scheme other than time: client work, wasted tasks, bytes, and the metric on slow clients' data.

Costs are counted until the target is held. If a run does not hold it, costs are counted to the end of the run, so a
scheme that fails early is not cheap. Records of earlier versions lack costs, and none are shown for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from fedpace.records.run import RunRecord
from fedpace.report.estimates import Estimate, metric_estimate, positive_estimate


@dataclass(frozen=True)
class SeedCost:
    """What one run cost until it held its target, or to its end."""

    work: float | None
    """Client-seconds."""
    tasks: int
    """Tasks to train that ended."""
    wasted: int | None
    """Of them, those that had no part in a step."""
    bytes_down: int | None
    bytes_up: int | None
    slowest: float | None
    """Metric on the data of the slowest tenth of the clients, when last evaluated."""


@dataclass(frozen=True)
class SchemeCost:
    """What a scheme cost, over its seeds. None: no run says."""

    work: Estimate | None
    tasks: float
    wasted: float | None
    """Share of the tasks."""
    bytes_down: float | None
    bytes_up: float | None
    slowest: Estimate | None

    @property
    def known(self) -> bool:
        """Whether there is anything to show."""
        return any(value is not None for value in (self.work, self.wasted, self.bytes_down, self.slowest))


def seed_cost(run: RunRecord) -> SeedCost:
    """Return what a run cost."""
    last = None if run.reached is None else run.reached.number
    counted = [current for current in run.rounds if current.number > 0 and (last is None or current.number <= last)]
    judged = [current.by_speed for current in run.rounds if current.by_speed]
    return SeedCost(
        work=_total([current.work for current in counted]),
        tasks=sum(len(current.clients) for current in counted),
        wasted=_whole([current.wasted for current in counted]),
        bytes_down=_whole([current.bytes_down for current in counted]),
        bytes_up=_whole([current.bytes_up for current in counted]),
        slowest=judged[-1][-1] if judged and run.info.status != "diverged" else None,
    )


def scheme_cost(costs: Sequence[SeedCost], metric: str) -> SchemeCost:
    """Return means over seeds, each over the runs that say."""
    tasks = sum(cost.tasks for cost in costs if cost.wasted is not None)
    wasted = [cost.wasted for cost in costs if cost.wasted is not None]
    return SchemeCost(
        work=positive_estimate([cost.work for cost in costs if cost.work is not None]),
        tasks=float(np.mean([cost.tasks for cost in costs])),
        wasted=sum(wasted) / tasks if tasks else None,
        bytes_down=_mean([cost.bytes_down for cost in costs]),
        bytes_up=_mean([cost.bytes_up for cost in costs]),
        slowest=metric_estimate([cost.slowest for cost in costs if cost.slowest is not None], metric),
    )


def work_so_far(run: RunRecord) -> list[float] | None:
    """Return client-seconds spent by the end of each round; None where they are not known."""
    spent = [current.work if current.number else current.work or 0.0 for current in run.rounds]
    return None if any(work is None for work in spent) else list(accumulate(work or 0.0 for work in spent))


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(sum(known)) if known and len(known) == len(values) else None


def _whole(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
