"""Honest federations that trust once harmed: with all default settings they must end as they do without trust.

These are the seven rows of the trials that found the harm. The last test puts exclusion by direction back, to show that
the others would notice it.
"""

from __future__ import annotations

import numpy as np
import pytest
from benchmark_path import benchmark

from fedpace.core.aggregation import Aggregator

honest = benchmark("honest")

FEDERATIONS = [
    ("flower-20", "pace"),
    ("flower-20", "pace-async"),
    ("flower-6", "random"),
    ("sorted-10", "pace"),
    ("sorted-30", "pace"),
    ("nine-few-60", "pace"),
    ("nine-slow-60", "pace-async"),
]


def compared(name, scheme):
    """Return the row of the benchmark for one seed."""
    if name.startswith("flower"):
        pytest.importorskip("flwr")
    off, on = (honest.run(name, scheme, 0, defence) for defence in ("off", "default"))
    return honest.row(name, scheme, [(off, on)])


@pytest.mark.parametrize(("name", "scheme"), FEDERATIONS)
def test_trust_does_not_harm_honest_clients(name, scheme):
    row = compared(name, scheme)
    assert row["passed"], row


def excluding_by_direction(bounded):
    """Return `Aggregator.bounded` with the old fault: an update against the mean of a step excludes its client."""

    def found(self, coordinator, step, answers):
        step, held, factors = bounded(self, coordinator, step, answers)
        if coordinator.ledger.trust.on and len(held) > 1:
            updates = np.array([np.asarray(answer.model, float) - np.asarray(answer.sent, float) for answer in held])
            against = updates @ updates.mean(axis=0) < 0
            rows = np.array(coordinator.ledger.rows_or_gone([answer.task.client for answer in held]))
            coordinator.ledger.trust.columns["rest_until"][rows[against]] = 1e6
        return step, held, factors

    return found


@pytest.mark.parametrize(("name", "scheme"), [("flower-6", "random"), ("sorted-10", "pace")])
def test_exclusion_by_direction_would_be_noticed(name, scheme, monkeypatch):
    monkeypatch.setattr(Aggregator, "bounded", excluding_by_direction(Aggregator.bounded))
    row = compared(name, scheme)
    assert row["excluded"] > 0
    assert not row["passed"], row
