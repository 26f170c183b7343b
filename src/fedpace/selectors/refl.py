"""REFL: rounds end with the first answers, and late answers join a later round.

Abdelmoniem, Sahu, Canini and Fahmy, "REFL: Resource-Efficient Federated Learning" (EuroSys 2023). A round asks
overcommit x k clients and ends after k answers, or at its deadline. Late clients are not stopped. A late answer joins
the round in which it arrives, with the weight

    (1 - beta) / (lag + 1) + beta (1 - exp(-r_i / r_max)),        lag = rounds since the client received its model,

where r_i is the squared distance of its update from the mean of the fresh updates, divided by the squared length of
that mean, and r_max is the largest r_i of the late answers. A fresh answer has weight 1. All weights are then divided
by their sum.

Where we depart, and why:
- The authors prefer clients that will be available least, by the clients' own forecasts. A View has no forecasts, so
  clients are drawn uniformly from those that are available and idle.
- The authors adapt the target number of answers to the late answers that they expect. Here it is k.
- The authors' r_i uses the mean of the late update with the n fresh ones, which is our r_i / (n + 1)^2. The ratio r_i /
  r_max is the same.
- If the clients' shares differ, weights are multiplied by them, as in FedAvg.
- Distances are between sketches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fedpace._base.checks import BoolArray, FloatArray
from fedpace._base.options import FINITE, Above, AtLeast, Between
from fedpace.core.rounds import cohort_size, over_asked
from fedpace.core.tasks import Apply, Move, Wait
from fedpace.core.types import Diagnostics, Need, Probe, Report, Scheme, View
from fedpace.selectors._drawing import share_weights


@dataclass(frozen=True)
class Begun:
    """State of REFL: the open round."""

    step: int = -1
    """The model version that its clients received; -1 = no round yet."""


@dataclass(frozen=True)
class Refl(Scheme):
    """Rounds of the first k replies; late ones join later.

    Args:
        k: number of answers to the current model that end a round.
        overcommit: clients asked per answer wanted; 1.3 in the paper.
        beta: part of a late answer's weight that grows with its distance from the fresh ones; the rest falls with its
            lag.
        deadline: seconds after which a round ends with the answers so far, at least one.
    """

    name: ClassVar[str] = "refl"
    uses: ClassVar[frozenset[Need]] = frozenset({Need.UPDATE})
    rounds: ClassVar[bool] = False

    k: Annotated[int, AtLeast(1)] = 10
    overcommit: Annotated[float, AtLeast(1), FINITE] = 1.3
    beta: Annotated[float, Between(0, 1)] = 0.35
    deadline: Annotated[float, Above(0)] = math.inf

    def init(self) -> Begun:
        """Return the state without an open round."""
        return Begun()

    def probe(self, state: Begun, view: View, rng: np.random.Generator) -> Probe | None:
        """Return None: there is no probe."""
        return None

    def observe(self, state: Begun, report: Report) -> Begun:
        """Return the state as it is: the next View contains the report."""
        return state

    def decide(self, state: Begun, view: View, rng: np.random.Generator) -> tuple[Move, Begun]:
        """End the open round, if there is one, and begin the next."""
        ends = state.step == view.step
        late = int((view.in_hand.step < view.step).sum())
        facts = {"late": late, "fresh": len(view.in_hand) - late}
        apply = Apply(view.in_hand.ids, self._weights(view)) if ends else None
        rows = view.candidates
        if not rows.size:  # no idle client: try again after the next answer
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
        """Return the weights of the answers in hand."""
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
    """Return r_i / r_max for late answers; 0 if there is nothing to compare with."""
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
