"""Runs made by hand: what a scheme did is written down as (seconds of the round, metric after it)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fedpace.records.run import RunInfo, RunRecord
from fedpace.sim.rounds import Round

MakeRun = Callable[..., RunRecord]


def build(
    label: str,
    seed: int,
    steps: Sequence[tuple[float, float]],
    *,
    target: float | None = 0.9,
    start: float = 0.1,
    cohort: Sequence[int] = (0, 1),
    **info: Any,
) -> RunRecord:
    rounds = [Round(number=0, clock=0.0, seconds=0.0, overhead=0.0, metric=start, loss=2.3)]
    for number, (seconds, metric) in enumerate(steps, start=1):
        clock = rounds[-1].clock + seconds
        weights = (1 / len(cohort),) * len(cohort) if cohort else ()
        rounds.append(Round(number, clock, seconds, 0.0, metric, 1.0, clients=tuple(cohort), weights=weights))
    fields: dict[str, Any] = {
        "selector": label,
        "options": {},
        "metric": "accuracy",
        "direction": "up",
        "experiment": {"model": {"name": "mlp"}},
        "expected_delays": (1.0, 2.0, 3.0, 4.0),
        "status": "finished",
        "versions": {"fedpace": "0.1.0"},
        "commit": "abc123+",
    }
    return RunRecord(RunInfo(label=label, seed=seed, target=target, **(fields | info)), tuple(rounds))


@pytest.fixture
def make_run() -> MakeRun:
    return build


@pytest.fixture
def three_schemes() -> list[RunRecord]:
    """Random reaches 0.9 after 100 and 200 s, quick after 50 and 50 s, stuck never."""
    return [
        build("random", 0, [(60, 0.5), (40, 0.95)]),
        build("random", 1, [(120, 0.5), (80, 0.95)]),
        build("quick", 0, [(10, 0.3), (20, 0.6), (20, 0.92)], cohort=(0, 1, 2)),
        build("quick", 1, [(30, 0.6), (20, 0.92)], cohort=(0,)),
        build("stuck", 0, [(5, 0.4), (5, 0.5)]),
        build("stuck", 1, [(5, 0.4), (5, 0.6)]),
    ]
