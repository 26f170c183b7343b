"""Whether a scheme stays where it arrives.

The grid's runs end soon after their target, so they cannot see a scheme that falls back later. A long run can: what it
has in rounds 200 to 300 is compared with the best level that it ever held, a mean over 50 rounds running. It may be a
point of accuracy worse, or 2 % of the initial model's excess loss.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpace.data.federated import Metric
from fedpace.sim.torch_trainer import DivergedError
from grid.cells import Cell
from grid.runs import prepare
from grid.schemes import Scheme

ROUNDS = 300
LATE = 200
"""First of the rounds that are judged."""
WINDOW = 50
"""Over 20 rounds the best of all means is a point above the level by chance alone: oort on rotated digits, seed 100,
lost 1.05 points that way while it still rose. Over 50 rounds it lost 0.5, and schemes that do fall still show.
"""
POINT = 0.01
EXCESS = 0.02


@dataclass(frozen=True)
class Stay:
    """Where a run was at its best, and where it was late."""

    best: float
    late: float
    lost: float
    """How much worse late is than best: points of accuracy as a fraction, or parts of the initial excess loss."""
    allowed: float

    @property
    def stays(self) -> bool:
        """Whether it lost no more than is allowed; a run that diverged has not stayed."""
        return bool(self.lost <= self.allowed)


def stay(curve: Sequence[float], metric: Metric) -> Stay:
    """Judge a curve, which holds the metric of each round, the initial model's first."""
    if len(curve) <= LATE:
        raise ValueError(f"a long run has more than {LATE} rounds, but {len(curve) - 1} came")
    values = np.asarray(curve, dtype=np.float64)
    late = float(values[LATE : ROUNDS + 1].mean())
    means = np.convolve(values[1 : ROUNDS + 1], np.full(WINDOW, 1 / WINDOW), "valid")
    if metric == "accuracy":
        best = float(means.max())
        return Stay(best, late, best - late, POINT)
    best = float(means.min())
    excess = float(values[0]) - best
    # A run that never got below its initial loss has nothing to lose: it has not arrived anywhere.
    return Stay(best, late, (late - best) / excess if excess > 0 else np.inf, EXCESS)


def long_run(scheme: Scheme, cell: Cell, rate: float, seed: int) -> Stay:
    """Play the rounds, and judge them."""
    curve: list[float] = []
    try:
        selector = scheme.selector(cell.task.data.clients)
        rounds = prepare(cell, selector, rate, seed, deadline=scheme.deadline).rounds()
        curve.extend(r.metric for r in itertools.islice(rounds, ROUNDS + 1) if r.metric is not None)
    except DivergedError:
        return Stay(np.nan, np.nan, np.inf, POINT if cell.task.data.metric == "accuracy" else EXCESS)
    return stay(curve, cell.task.data.metric)
