"""Synchronous rounds: the policy that every Selector becomes, and helpers that schemes for rounds share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from fedpace._base.checks import FloatArray, IntArray, Naming
from fedpace._base.errors import InfeasibleError, InputError
from fedpace.core.tasks import Apply, Move, Task, Wait
from fedpace.core.types import Cohort, Mode, Probe, Report, Selector, View
from fedpace.core.validation import check_cohort


class Rounds:
    """Turns a Selector into a Policy: each decision starts a round, and the coordinator ends it with `ending`.

    Args:
        selector: the scheme.
        name_of: row -> name of its client in error messages.
        bound: caps the weights of a cohort (`fedpace.trust`).
    """

    rounds: ClassVar[bool] = True

    def __init__(self, selector: Selector[Any], name_of: Naming, bound: Callable[[Cohort, View], Cohort]) -> None:
        self.selector = selector
        self.name, self.needs, self.uses = selector.name, selector.needs, selector.uses
        self._name_of, self._bound = name_of, bound

    def of(self, selector: Selector[Any]) -> Rounds:
        """Return the same policy for another scheme."""
        return Rounds(selector, self._name_of, self._bound)

    def init(self) -> Any:
        """Return the scheme's initial state."""
        return self.selector.init()

    def probe(self, state: Any, view: View, rng: np.random.Generator) -> Probe | None:
        """Return the scheme's probe, or None."""
        return self.selector.probe(state, view, rng)

    def decide(self, state: Any, view: View, rng: np.random.Generator) -> tuple[Move, Any]:
        """Return the move that starts the scheme's next cohort, and the scheme's new state."""
        chosen = self.selector.select(state, view, rng)
        if not (isinstance(chosen, tuple) and len(chosen) == 2 and isinstance(chosen[0], Cohort)):
            came = type(chosen).__name__
            raise InputError(
                f"select of {self.name} must return a Cohort and its state, (cohort, None), but {came} came"
            )
        cohort, state = chosen
        check_cohort(cohort, view, self.name, self._name_of)
        cohort = self._bound(filled_up(cohort, view, self.name), view)
        wait = Wait(cohort.quorum, cohort.deadline)
        move = Move(cohort.clients, cohort.weights, wait=wait, mode=cohort.mode, why=cohort.why, work=cohort.work)
        return move, state

    def observe(self, state: Any, report: Report) -> Any:
        """Return the scheme's state after it has seen the report."""
        return self.selector.observe(state, report)


def filled_up(cohort: Cohort, view: View, scheme: str) -> Cohort:
    """Return the cohort with at least `View.minimum` clients that have weight: the fastest other clients join.

    Those that join get the mean weight of the others. Only sums have a minimum, so other cohorts stay as they are.
    """
    counting = int(np.count_nonzero(cohort.weights))
    missing = view.minimum - counting
    if view.minimum <= 1 or missing <= 0:
        return cohort
    others = np.setdiff1d(view.candidates, cohort.clients)
    if cohort.mode != "average" or others.size < missing or not cohort.weights.sum() > 0:
        raise InfeasibleError(
            f"{scheme} chose {counting} clients, but a sum needs at least {view.minimum}: lower minimum, or use a "
            "scheme with a larger cohort"
        )
    order = np.lexsort((others, np.nan_to_num(view.delay[others], nan=math.inf)))
    joined = others[order[:missing]]
    weights = np.concatenate([cohort.weights, np.full(missing, float(cohort.weights.sum()) / counting)])
    work = None if cohort.work is None else np.concatenate([cohort.work, np.ones(missing)])
    reasons = {**cohort.why.reasons, **dict.fromkeys(joined.tolist(), f"a sum needs {view.minimum} clients")}
    return replace(
        cohort,
        clients=np.concatenate([cohort.clients, joined]),
        weights=weights / weights.sum(),
        work=work,
        why=replace(cohort.why, reasons=reasons),
        quorum=max(cohort.quorum, view.minimum) if cohort.quorum else 0,
    )


def ending(flying: list[Task], held: list[Task], mode: Mode) -> Move:
    """Return the move that ends a round: it applies the answers in hand and gives up the tasks in flight.

    In mode `average` the weights of the answers are scaled to sum 1. In mode `delta` they stay as they are, so the part
    of the missing clients is missing.
    """
    weights = [task.weight for task in held]
    if mode == "average" and (total := sum(weights)) > 0:
        weights = [weight / total for weight in weights]
    ids, missing = ([task.id for task in tasks] for tasks in (held, flying))
    apply = Apply(np.array(ids, dtype=np.int64), np.array(weights), mode)
    return Move(apply=apply, drop=np.array(missing, dtype=np.int64))


# -- cohort sizes and draws --------------------------------------------------------------------------------------------


def check_k(k: int, clients: int, scheme: str) -> None:
    """Raise InputError if `k` exceeds the number of all clients, which is a mistake in the configuration."""
    if k > clients:
        only = "is only 1" if clients == 1 else f"are only {clients}"
        raise InputError(f"{scheme} is asked for k = {k} clients, but there {only}: lower k or add clients")


def cohort_size(k: int, view: View, scheme: str) -> int:
    """Return the cohort size: `k`, or the number of available clients if that is smaller."""
    check_k(k, view.clients, scheme)
    return min(k, int(view.candidates.size))


def over_asked(wanted: int, overcommit: float, reachable: int) -> int:
    """Return how many clients to start so that `wanted` answer: overcommit * wanted, but at most `reachable`."""
    return min(math.ceil(overcommit * wanted - 1e-9), reachable)  # rounding errors must not turn 1.3 * 10 into 14


def draw_multiset(
    rows: IntArray, probabilities: FloatArray, k: int, rng: np.random.Generator
) -> tuple[IntArray, FloatArray]:
    """Draw `k` of `rows` with replacement; return the distinct rows and, for each, its number of draws / k."""
    drawn, counts = np.unique(rng.choice(rows, size=k, replace=True, p=probabilities), return_counts=True)
    return drawn, counts / k
