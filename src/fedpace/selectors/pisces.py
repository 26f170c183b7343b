"""Pisces: asynchronous training that starts clients whose answers will be useful and fresh.

Jiang, Wang, Li and Li, "Pisces: Efficient Federated Learning via Guided Asynchronous Training" (SoCC 2022). A fixed
number C of clients is in flight. A free place goes to the client with the highest utility,

    U_i / (1 + mean lag_i)^discount,    U_i = size x root mean square loss, as in Oort,

where the mean is over the client's last five lags. A decaying part epsilon of the places goes to new clients. The pace
of steps keeps answers from being much older than C steps: the server steps when the time since the last step is at
least the longest latency in flight divided by C. The step uses all answers in hand,

    x <- x + sum_i a_i u_i,    a_i proportional to samples_i (1 + lag_i)^-staleness,    sum a_i = 1.

Where we depart, and why:
- Hosts report mean losses instead of root mean squares, as for Oort: U_i = samples_i x loss_i.
- Each free place goes with probability epsilon to a random new client. Epsilon decays per step.
- In the weights, shares replace samples. They are equal if the objective counts clients equally.
- Latencies are the View's delays. Clients with unknown delay do not hold up a step.
- The authors exclude clients with outlying losses as a defence against corrupted data. This is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.errors import InputError
from fedpace._base.options import FINITE, AtLeast, Between
from fedpace.core.tasks import Apply, Move, Wait
from fedpace.core.types import Accumulator, Diagnostics, Need, Report, Scheme, Settled, View
from fedpace.selectors._drawing import largest
from fedpace.selectors.oort import sizes

LAGS = 5
"""Number of lags remembered per client."""
ROUNDING = 1e-9
"""Relative tolerance on the time between steps, so that rounding errors do not delay a step that is due."""


class RecentLags(Accumulator):
    """(n, 5) the lags of each client's last answers: steps made while it trained; newest last, NaN = none yet."""

    name: ClassVar[str] = "recent_lags"
    per_client: ClassVar[bool] = True
    shape: ClassVar[tuple[int, ...]] = (LAGS,)

    def empty(self, entries: int) -> FloatArray:
        """Return a table of NaN."""
        return np.full((entries, LAGS), np.nan)

    def answered(self, values: FloatArray, settled: Settled) -> FloatArray:
        """Record the lags of the clients that answered."""
        rows = settled.rows[settled.finished]
        after = values.copy()
        after[rows] = np.column_stack([values[rows, 1:], np.full(rows.size, float(settled.lag))])
        return after


@dataclass(frozen=True)
class PiscesState:
    """State of Pisces."""

    epsilon: float
    last: float = 0.0
    """Time of the last step."""


@dataclass(frozen=True)
class Pisces(Scheme):
    """Useful, fresh clients; the slowest of them paces steps.

    Args:
        in_flight: C, number of clients that train at a time; 0 = all that can be reached. The authors use 20 of 200.
        discount: factor of a client's utility: (1 + mean lag) ** -discount; 0 = lags do not matter.
        staleness: factor of an answer's weight: (1 + lag) ** -staleness; 0 = stale answers count in full.
        epsilon: initial probability that a free place goes to a new client.
        epsilon_decay: factor on epsilon per step.
        epsilon_least: smallest epsilon.
    """

    name: ClassVar[str] = "pisces"
    reads_losses: ClassVar[bool] = True
    not_with: ClassVar[Mapping[str, str]] = {
        "scaffold": "its steps of few stale answers diverge with control variates. Use algorithm = 'fedavg', or use "
        "pace-async"
    }
    uses: ClassVar[frozenset[Need]] = frozenset({Need.DELAY})
    rounds: ClassVar[bool] = False
    accumulates: ClassVar[tuple[Accumulator, ...]] = (RecentLags(),)

    in_flight: Annotated[int, AtLeast(0)] = 20
    discount: Annotated[float, AtLeast(0), FINITE] = 0.5
    staleness: Annotated[float, AtLeast(0), FINITE] = 0.5
    epsilon: float = 0.9
    epsilon_decay: Annotated[float, Between(0, 1)] = 0.98
    epsilon_least: float = 0.3

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid, or if two do not go together."""
        super().__post_init__()
        if not 0 <= self.epsilon_least <= self.epsilon <= 1:
            raise InputError(
                f"expected 0 <= epsilon_least <= epsilon <= 1 of pisces, but {self.epsilon_least} and "
                f"{self.epsilon} came"
            )

    def init(self) -> PiscesState:
        """Return the state before the first step."""
        return PiscesState(self.epsilon)

    def observe(self, state: PiscesState, report: Report) -> PiscesState:
        """Return the state as it is: the next View contains the report."""
        return state

    def decide(self, state: PiscesState, view: View, rng: np.random.Generator) -> tuple[Move, PiscesState]:
        """Step if it is time, and start clients in the free places."""
        hand = view.in_hand
        capacity = self.in_flight or view.clients
        start = self._starting(view, max(0, capacity - len(view.in_flight)), state.epsilon, rng)
        # Clients that have just answered are no longer in flight, so their latency does not count.
        interval = _longest(view, view.in_flight.clients) / capacity
        apply, facts, left = None, {}, len(hand)
        if len(hand) and view.now - state.last >= interval * (1.0 - ROUNDING):
            lag = view.step - hand.step
            apply = Apply(hand.ids, self._weights(view, lag))
            facts = {"mean lag": float(lag.mean()), "largest lag": int(lag.max()), "epsilon": state.epsilon}
            epsilon = max(self.epsilon_least, state.epsilon * self.epsilon_decay)
            state, left = replace(state, last=view.now, epsilon=epsilon), 0
        # Decide again after every answer, to fill its place, and at the time of the next step, even without an answer.
        going = _longest(view, np.concatenate([view.in_flight.clients, start])) / capacity
        until = state.last + going - view.now
        wait = Wait(left + 1, until if left and until > 0 else math.inf)
        return Move(start, np.zeros(start.size), apply, wait=wait, why=Diagnostics(facts=facts)), state

    def _starting(self, view: View, room: int, epsilon: float, rng: np.random.Generator) -> IntArray:
        """Return the clients that take the free places; rows are ascending."""
        rows = view.candidates
        count = min(room, rows.size)
        tried = (view.participations[rows] > 0) & ~np.isnan(view.loss[rows])
        known, new = rows[tried], rows[~tried]
        wanted = int(rng.binomial(count, epsilon))
        explored = min(max(wanted, count - known.size), new.size)
        best = largest(known, self.utility(view)[known], count - explored, rng)
        return np.sort(np.concatenate([best, rng.choice(new, size=explored, replace=False)]))

    def utility(self, view: View) -> FloatArray:
        """(n,) utility of each client; NaN if its loss is unknown."""
        lags = view.accumulated[RecentLags.name]
        seen = ~np.isnan(lags)
        mean = np.where(seen, lags, 0.0).sum(axis=1) / np.maximum(seen.sum(axis=1), 1)
        return np.asarray(sizes(view) * view.loss / (1.0 + mean) ** self.discount)

    def _weights(self, view: View, lag: IntArray) -> FloatArray:
        share = view.share[view.in_hand.clients]
        weights = (share if share.any() else np.ones(lag.size)) * (1.0 + lag) ** -self.staleness
        return np.asarray(weights / weights.sum())


def _longest(view: View, rows: IntArray) -> float:
    """Return the longest known latency among the clients; 0 if none is known."""
    seconds = view.delay[rows]
    return float(np.max(seconds, initial=0.0, where=~np.isnan(seconds)))
