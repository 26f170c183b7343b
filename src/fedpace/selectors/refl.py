"""Rounds that end with the first answers, and use the late ones later: REFL.

Abdelmoniem, Sahu, Canini and Fahmy, "REFL: Resource-Efficient Federated Learning" (EuroSys 2023). A round asks
overcommit x k clients and ends with k answers, or at its deadline. Who is late is not stopped: its answer joins the
round in which it comes, with the weight

    (1 - beta) / (lag + 1) + beta (1 - exp(-r_i / r_max)),        lag = rounds since it was given its model,

where r_i is the squared distance of its update from the mean of the fresh ones over the squared length of that mean,
and r_max the largest among the late. A fresh answer has weight 1; then all weights are divided by their sum.

Where we depart, and why: the authors prefer those clients that will be available least in the time to come, by
forecasts that clients make; a View has none, so clients are drawn uniformly from those that are there and idle. Their
target of answers adapts to the late answers that are expected; here it is k. Their r_i is of the mean that the late
update would make with the n fresh ones, which is ours over (n + 1)^2: r_i / r_max is the same. Where clients' shares
differ, weights are multiplied by them, as in FedAvg. Distances are taken between sketches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedpace._base.checks import BoolArray, FloatArray, above, at_least, between, finite, whole
from fedpace.core.cohorts import cohort_size, over_asked
from fedpace.core.tasks import Apply, Move, Wait
from fedpace.core.types import Diagnostics, Need, Probe, Report, Scheme, View
from fedpace.selectors._drawing import share_weights


@dataclass(frozen=True)
class Begun:
    """Which round is out."""

    step: int = -1
    """The version of the model that its clients were given; -1 = there was none."""


@dataclass(frozen=True)
class Refl(Scheme):
    """Rounds of the first k replies; late ones join later.

    Args:
        k: answers on the current model that end a round.
        overcommit: clients asked for each one wanted; the authors ask 1.3.
        beta: what a late answer gains by being unlike the fresh ones; the rest of its weight falls with its lag.
        deadline: seconds after which a round ends with those that have answered, at least one.
    """

    name: ClassVar[str] = "refl"
    needs: ClassVar[frozenset[Need]] = frozenset()
    uses: ClassVar[frozenset[Need]] = frozenset({Need.UPDATE})
    rounds: ClassVar[bool] = False

    k: int = 10
    overcommit: float = 1.3
    beta: float = 0.35
    deadline: float = math.inf

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        whole(self.k, 1, "k of refl")
        at_least(self.overcommit, 1, "overcommit of refl")
        finite(self.overcommit, "overcommit of refl")
        between(self.beta, 0, 1, "beta of refl")
        above(self.deadline, 0, "deadline of refl")

    def init(self) -> Begun:
        """No round is out."""
        return Begun()

    def probe(self, state: Begun, view: View, rng: np.random.Generator) -> Probe | None:
        """Ask nobody."""
        return None

    def observe(self, state: Begun, report: Report) -> Begun:
        """Return the state as it is: the next View contains the report."""
        return state

    def decide(self, state: Begun, view: View, rng: np.random.Generator) -> tuple[Move, Begun]:
        """End the round that is out, where there is one, and begin the next."""
        ends = state.step == view.step
        late = int((view.in_hand.step < view.step).sum())
        facts = {"late": late, "fresh": len(view.in_hand) - late}
        apply = Apply(view.in_hand.ids, self._weights(view)) if ends else None
        rows = view.candidates
        if not rows.size:  # everybody is at work or away: whoever answers next may begin again
            return Move(apply=apply, wait=Wait(len(view.in_hand) * (not ends) + 1)), state
        size = cohort_size(self.k, view, self.name)
        clients = np.sort(rng.choice(rows, size=over_asked(size, self.overcommit, rows.size), replace=False))
        move = Move(
            clients,
            share_weights(view, clients),
            apply,
            wait=Wait(size, self.deadline, fresh=True),
            why=Diagnostics(facts=facts if ends else {}),
        )
        return move, Begun(view.step + ends)

    def _weights(self, view: View) -> FloatArray:
        """Return what the answers in hand weigh."""
        hand = view.in_hand
        if not len(hand):
            return np.zeros(0)
        lag = view.step - hand.step
        share = view.share[hand.clients]
        share = share if share.any() else np.ones(len(hand))
        weights = np.ones(len(hand))
        late = lag > 0
        if late.any():
            apart = _deviations(hand.updates(), late, share)
            weights[late] = (1 - self.beta) / (lag[late] + 1) + self.beta * -np.expm1(-apart[late])
        weights *= share
        return np.asarray(weights / weights.sum())


def _deviations(updates: FloatArray | None, late: BoolArray, share: FloatArray) -> FloatArray:
    """Return r_i / r_max of the late answers; 0 where there is nothing to compare."""
    none = np.zeros(late.size)
    if updates is None:
        return none
    reported = np.asarray(~np.isnan(updates).any(axis=1))
    fresh, late = reported & ~late, reported & late
    if not share[fresh].any() or not late.any():
        return none
    mean = share[fresh] @ updates[fresh] / share[fresh].sum()
    squared = np.where(late, np.square(np.where(reported[:, None], updates, 0.0) - mean).sum(axis=1), 0.0)
    largest = squared.max()
    return np.asarray(squared / largest) if largest > 0 else none
