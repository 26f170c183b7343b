"""Checks of what policies and hosts say: cohorts, moves, probes, outcomes.

Errors name the scheme, the client and the value. Look here for the rules that a Cohort or a Move must obey, and for the
warning about facts that no client reports.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedpace._base.checks import BoolArray, FloatArray, IntArray, Naming, float_array, listed
from fedpace._base.codec import ClientId
from fedpace._base.errors import FedpaceWarning, InputError
from fedpace.core.ledger import Ledger
from fedpace.core.task_table import stacked
from fedpace.core.tasks import Move, StepFacts, Task
from fedpace.core.types import Cohort, InFlight, Mode, Need, Outcome, Probe, Report, Selection, View

SUM_TOLERANCE = 1e-9
WORK_REFUSED = (
    "sets how much each client trains, but this host trains all clients alike: let clients train as much as Task.work "
    "says and offer Need.WORK, or use a scheme that leaves the work at 1"
)


def check_cohort(cohort: Cohort, view: View, scheme: str, name: Naming) -> None:
    """Raise InputError if a cohort has invalid clients, weights, mode, quorum or deadline."""
    _check_rows(cohort.clients, view.available, f"{scheme} chose", name)
    weights = cohort.weights
    if weights.shape != cohort.clients.shape:
        raise InputError(f"{scheme} chose {cohort.clients.size} clients but gave {weights.size} weights")
    _check_weights(weights, cohort.mode, cohort.clients, scheme, name)
    if not 0 <= cohort.quorum <= cohort.clients.size:
        raise InputError(
            f"{scheme} calls {cohort.quorum} clients a quorum, but chose {cohort.clients.size}: give 0 (all) to those"
        )
    if not cohort.deadline > 0:
        raise InputError(f"{scheme} set a deadline of {cohort.deadline} s; it must be above 0")


def check_move(move: Move, view: View, scheme: str, name: Naming) -> None:
    """Raise InputError if the move of a policy without rounds has invalid clients, task ids, weights or mode."""
    _check_ids(move.drop, view.in_flight, f"{scheme} drops", "in flight")
    if move.start.size:
        given_up = view.in_flight.clients[np.isin(view.in_flight.ids, move.drop)]  # they may start again at once
        available = view.available.copy()
        available[given_up] = True
        _check_rows(move.start, available, f"{scheme} starts", name)
    if move.weights.shape != move.start.shape:
        raise InputError(f"{scheme} starts {move.start.size} clients but plans {move.weights.size} weights")
    if move.apply is None:
        return
    ids, hand = move.apply.ids, view.in_hand
    _check_ids(ids, hand, f"{scheme} applies", "in hand")
    weights = float_array(move.apply.weights, f"the weights of {scheme}", finite=False)
    if weights.shape != ids.shape:
        raise InputError(f"{scheme} applies {ids.size} answers but gave {weights.size} weights: give one each")
    if ids.size:
        order = np.argsort(hand.ids)
        clients = hand.clients[order[np.searchsorted(hand.ids, ids, sorter=order)]]
        _check_weights(weights, move.apply.mode, clients, scheme, name)


def _check_ids(ids: IntArray, tasks: InFlight, who: str, where: str) -> None:
    unknown = ids[~np.isin(ids, tasks.ids)]
    if unknown.size:
        raise InputError(f"{who} task {int(unknown[0])}, which is not {where}: take ids from the View")
    values, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        raise InputError(f"{who} task {int(values[np.argmax(counts)])} twice: name each task once")


def _check_weights(weights: FloatArray, mode: Mode, clients: IntArray, scheme: str, name: Naming) -> None:
    """Raise InputError if the weights or the mode of a step are invalid.

    Args:
        weights: (k,) one for each answer, k > 0.
        mode: aggregation mode.
        clients: (k,) row of each answer's client.
        scheme: name in errors.
        name: row -> name of its client.
    """
    if not np.isfinite(weights).all():
        at = int(np.flatnonzero(~np.isfinite(weights))[0])
        raise InputError(f"{scheme} gave {name(int(clients[at]))} the weight {weights[at]}, which is not finite")
    if mode not in ("average", "delta"):
        raise InputError(f"{scheme} asks for the mode {mode!r}; there are 'average' and 'delta'")
    if mode == "average":
        if (weights < 0).any():
            at = int(np.argmin(weights))
            raise InputError(
                f"{scheme} gave {name(int(clients[at]))} the weight {weights[at]}: in mode 'average' weights are at "
                "least 0; use mode 'delta' for others"
            )
        if abs(float(weights.sum()) - 1.0) > SUM_TOLERANCE:
            raise InputError(
                f"{scheme} gave weights that sum to {float(weights.sum())}: in mode 'average' they sum to 1; use mode "
                "'delta' for others"
            )


def check_probe(probe: Probe, view: View, scheme: str, name: Naming) -> None:
    """Raise InputError if a probe has invalid clients, kind or samples."""
    _check_rows(probe.clients, view.available, f"{scheme} probes", name)
    if probe.kind not in ("loss", "gradient"):
        raise InputError(f"{scheme} probes for {probe.kind!r}; there are 'loss' and 'gradient'")
    if probe.samples < 0:
        raise InputError(f"{scheme} probes {probe.samples} samples; give a number of them, or 0 for all")


def checked_facts(facts: StepFacts, answers: int, scheme: str) -> StepFacts:
    """Return the facts of a step as finite numbers or arrays of one number per answer; raise InputError otherwise."""
    found: dict[str, float | FloatArray] = {}
    for name, value in facts.items():
        array = float_array(value, f"the fact {name!r} of {scheme}", ndim=np.ndim(value))
        if array.ndim and array.shape != (answers,):
            raise InputError(
                f"the fact {name!r} of {scheme} must be a number, or one for each of the {answers} answers of the "
                f"step, but an array of shape {array.shape} came"
            )
        found[name] = array if array.ndim else float(array)
    return found


def checked_work(work: FloatArray, clients: int, scheme: str, *, accepted: bool) -> list[float]:
    """Return the work of each task that starts; raise InputError if it is invalid, or not 1 where that is not accepted.

    Args:
        work: (clients,) from the policy.
        clients: number of tasks.
        scheme: name in errors.
        accepted: whether the host trains as much as a task says.
    """
    amounts = float_array(work, f"the work that {scheme} gives")
    if amounts.size != clients:
        raise InputError(f"{scheme} starts {clients} clients but gives {amounts.size} amounts of work: give one each")
    if not (amounts > 0).all():
        raise InputError(f"{scheme} gives a client {amounts.min():g} times the usual work: it must be above 0")
    if not accepted and (amounts != 1).any():
        raise InputError(f"{scheme} {WORK_REFUSED}")
    found: list[float] = amounts.tolist()
    return found


def _check_rows(rows: IntArray, available: BoolArray, who: str, name: Naming) -> None:
    if rows.ndim != 1 or rows.size == 0:
        raise InputError(f"{who} nobody (an array of shape {rows.shape}): at least one client is needed")
    if rows.min() < 0 or rows.max() >= available.size:
        bad = int(rows.min()) if rows.min() < 0 else int(rows.max())
        raise InputError(f"{who} row {bad}, but there are rows 0 to {available.size - 1}")
    values, counts = np.unique(rows, return_counts=True)
    if (counts > 1).any():
        row = int(values[np.argmax(counts)])
        raise InputError(f"{who} {name(row)} {int(counts.max())} times: add its weights and name it once")
    if not available[rows].all():
        row = int(rows[~available[rows]][0])
        raise InputError(f"{who} {name(row)}, which is not available now")


# -- outcomes ----------------------------------------------------------------------------------------------------------


def checked_outcomes(outcomes: Iterable[Any]) -> list[Outcome]:
    """Return the outcomes as a list; raise InputError for wrong types or repeated clients."""
    checked: list[Outcome] = []
    seen: set[ClientId] = set()
    for outcome in listed(outcomes, "the outcomes"):
        if not isinstance(outcome, Outcome):
            raise InputError(f"expected an Outcome for each client, but a {type(outcome).__name__} came")
        if not isinstance(outcome.finished, bool | np.bool_):
            raise InputError(f"finished of client {outcome.client!r} must be True or False")
        try:
            twice = outcome.client in seen
        except TypeError as cause:
            raise InputError(f"a client id must be hashable, but {outcome.client!r} is not") from cause
        if twice:
            raise InputError(f"client {outcome.client!r} was reported twice")
        seen.add(outcome.client)
        checked.append(outcome)
    return checked


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
        clients=ledger.rows([outcome.client for outcome in outcomes]),
        finished=np.array([outcome.finished for outcome in outcomes], dtype=np.bool_),
        seconds=ledger.trust.bound_seconds([o.seconds for o in outcomes], [o.measured for o in outcomes]),
        loss=np.array([outcome.loss for outcome in outcomes]),
        samples=np.array([outcome.samples for outcome in outcomes]),
        weights=np.array([task.weight for task, _ in settled]),
        updates=stacked([outcome.update for outcome in outcomes]),
        step_facts=step_facts or {},
        work=np.array([task.work for task, _ in settled], dtype=np.float64),
    )


# -- facts that no client reports --------------------------------------------------------------------------------------


SILENT_STEPS = 3
"""Number of rounds before the warning."""

REMEDY = {
    Need.DELAY: "report seconds with each Outcome, or give delays when clients join",
    Need.LOSS: "report loss with each Outcome, or answer probes",
    Need.LABELS: "give labels, a histogram per client, when clients join",
    Need.UPDATE: "report update with each Outcome: a sketch of trained minus sent, of the same length for all",
    Need.MOMENT: "report moment with each Outcome: fedpace.moments.factor_from_features(features)",
}
"""Fact -> advice for the host. TARGETS is missing, because a moment does not show whether it includes targets."""


def warn_of_missing_facts(policy: Any, ledger: Ledger, wanted: frozenset[Need]) -> None:
    """Warn of each fact in `wanted` that no client has reported."""
    for need, remedy in REMEDY.items():
        if need in wanted and not ledger.known(frozenset({need})).any():
            effect = "it needs them to choose" if need in policy.needs else "it works worse without them"
            warnings.warn(
                f"{policy.name} was told no {need.value} in {SILENT_STEPS} rounds, and {effect}: {remedy}",
                FedpaceWarning,
                stacklevel=2,
            )
