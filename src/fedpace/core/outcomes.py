"""From what a host says of its clients to what a selector is told."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpace.core.errors import InputError
from fedpace.core.flight import stacked
from fedpace.core.ledger import Ledger
from fedpace.core.tasks import Task
from fedpace.core.types import ClientId, Outcome, Report, Selection


def settled_outcomes(selection: Selection, outcomes: list[Outcome], ledger: Ledger) -> list[Outcome]:
    """Return the outcomes in cohort order, everyone once, without those who left meanwhile."""
    by_client: dict[ClientId, Outcome] = {}
    expected = set(selection.clients)
    for outcome in outcomes:
        if outcome.client not in expected:
            raise InputError(f"client {outcome.client!r} was reported, but it is not in selection {selection.step}")
        if outcome.client in by_client:
            raise InputError(f"client {outcome.client!r} was reported twice in selection {selection.step}")
        by_client[outcome.client] = outcome
    for client in selection.clients:
        if client not in by_client and client in ledger:
            raise InputError(
                f"client {client!r} of selection {selection.step} is missing from the report: say how it settled, "
                "with finished=False if it failed"
            )
    return [by_client[client] for client in selection.clients if client in ledger]


def make_report(step: int, settled: Sequence[tuple[Task, Outcome]], ledger: Ledger, now: float) -> Report:
    """Return what a policy is told of a step, in rows."""
    outcomes = [outcome for _, outcome in settled]
    return Report(
        step=step,
        now=now,
        clients=np.array([ledger.row(outcome.client) for outcome in outcomes], dtype=np.int64),
        finished=np.array([outcome.finished for outcome in outcomes], dtype=np.bool_),
        seconds=np.array([ledger.trust.seconds(outcome) for outcome in outcomes]),
        loss=np.array([outcome.loss for outcome in outcomes]),
        samples=np.array([outcome.samples for outcome in outcomes]),
        weights=np.array([task.weight for task, _ in settled]),
        updates=stacked([outcome.update for outcome in outcomes]),
    )
