"""Checks of the outcomes that a host reports, and the Report that a policy gets from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedpace._base.checks import listed
from fedpace._base.errors import InputError
from fedpace.core.flight import stacked
from fedpace.core.ledger import Ledger
from fedpace.core.tasks import Task
from fedpace.core.types import ClientId, Outcome, Report, Selection


def checked_outcomes(outcomes: Iterable[Any]) -> list[Outcome]:
    """Return the outcomes as a list; raise InputError for wrong types or repeated clients."""
    checked: list[Outcome] = []
    seen: set[ClientId] = set()
    for outcome in listed(outcomes, "the outcomes"):
        if not isinstance(outcome, Outcome):
            raise InputError(f"expected an Outcome for each client, but a {type(outcome).__name__} came")
        if not isinstance(outcome.finished, bool | np.bool_) or not isinstance(outcome.late, bool | np.bool_):
            raise InputError(f"finished and late of client {outcome.client!r} must be True or False")
        try:
            twice = outcome.client in seen
        except TypeError as cause:
            raise InputError(f"a client id must be hashable, but {outcome.client!r} is not") from cause
        if twice:
            raise InputError(f"client {outcome.client!r} was reported twice")
        seen.add(outcome.client)
        checked.append(outcome)
    return checked


def whole_task(task: Any) -> int:
    """Return the id of a task as an int; raise InputError if it is no integer."""
    if type(task) is int:
        return task
    if isinstance(task, bool) or not isinstance(task, int | np.integer):
        raise InputError(f"a task is named by its id, a whole number, but {task!r} came: give task.id")
    return int(task)


def check_client(outcome: Outcome, task: Task) -> None:
    """Raise InputError if the outcome names another client than the task; answers to probes are not checked."""
    if task.kind != "probe" and not _same(outcome.client, task.client):
        raise InputError(f"task {task.id} is client {task.client!r}'s, not {outcome.client!r}'s")


def _same(told: Any, client: ClientId) -> bool:
    try:
        return bool(told == client)
    except (TypeError, ValueError):  # an array is neither
        return False


def settled_outcomes(selection: Selection, outcomes: Iterable[Outcome], ledger: Ledger) -> list[Outcome]:
    """Return the outcomes in the order of the selection, without clients that have left.

    A missing, repeated or unexpected client raises InputError.
    """
    by_client: dict[ClientId, Outcome] = {}
    expected = set(selection.clients)
    for outcome in checked_outcomes(outcomes):
        if outcome.client not in expected:
            raise InputError(f"client {outcome.client!r} was reported, but it is not in selection {selection.step}")
        by_client[outcome.client] = outcome
    for client in selection.clients:
        if client not in by_client and client in ledger:
            raise InputError(
                f"client {client!r} of selection {selection.step} is missing from the report: say how it settled, "
                "with finished=False if it failed"
            )
    return [by_client[client] for client in selection.clients if client in ledger]


def make_report(
    step: int,
    settled: Sequence[tuple[Task, Outcome]],
    ledger: Ledger,
    now: float,
    step_facts: Mapping[str, float] | None = None,
) -> Report:
    """Return the Report of a step for the policy, with clients as rows."""
    outcomes = [outcome for _, outcome in settled]
    return Report(
        step=step,
        now=now,
        clients=np.array([ledger.row(outcome.client) for outcome in outcomes], dtype=np.int64),
        finished=np.array([outcome.finished for outcome in outcomes], dtype=np.bool_),
        seconds=np.array([ledger.trust.seconds(outcome.seconds, outcome.measured) for outcome in outcomes]),
        loss=np.array([outcome.loss for outcome in outcomes]),
        samples=np.array([outcome.samples for outcome in outcomes]),
        weights=np.array([task.weight for task, _ in settled]),
        updates=stacked([outcome.update for outcome in outcomes]),
        step_facts=step_facts or {},
    )
