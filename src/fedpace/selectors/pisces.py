"""No rounds, and no client at random: those work whose answers will be useful and fresh. Pisces.

Jiang, Wang, Li and Li, "Pisces: Efficient Federated Learning via Guided Asynchronous Training" (SoCC 2022). So many
clients are at work at any time. A place that falls free goes to the client with the highest utility,

    U_i / (1 + mean lag_i)^discount,    U_i = size x root mean square loss, as in Oort,

the mean being that of its last five lags; a part epsilon of the places, which decays, goes to clients not tried yet.
When to step is paced so that no answer is much older than C steps, C the clients at work: once the seconds since the
last step are at least the longest latency of those at work over C. All answers in hand then make the step,

    x <- x + sum_i a_i u_i,    a_i proportional to samples_i (1 + lag_i)^-staleness,    sum a_i = 1.

Where we depart, and why:
- hosts report mean losses instead of root mean squares, as for Oort: U_i = samples_i x loss_i;
- a part epsilon of the places: each of them with that chance, to a client drawn at random from those not tried yet;
  epsilon decays with every step;
- samples count as shares do: equally where the objective counts clients equally;
- latencies are the View's delays, of clients that nothing is known of none: they do not hold a step up;
- the authors leave out clients whose losses are outliers in their cluster, against corrupted data: left out here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedpace._base.checks import FloatArray, IntArray, at_least, between, finite, whole
from fedpace._base.errors import InputError
from fedpace.core.accumulators import Accumulator, Settled
from fedpace.core.tasks import Apply, Move, Wait
from fedpace.core.types import Diagnostics, Need, Report, Scheme, View
from fedpace.selectors._drawing import largest
from fedpace.selectors.oort import sizes

LAGS = 5
"""Of each client, so many lags are remembered."""
ROUNDING = 1e-9
"""Of the seconds between two steps: a wait that ends on time must not be found to be a rounding error short."""


class RecentLags(Accumulator):
    """(n, 5) how many steps were made while each client worked, in its last tasks, the newest last; NaN = none yet."""

    name: ClassVar[str] = "recent_lags"
    per_client: ClassVar[bool] = True
    shape: ClassVar[tuple[int, ...]] = (LAGS,)

    def empty(self, entries: int) -> FloatArray:
        """Nothing is known."""
        return np.full((entries, LAGS), np.nan)

    def answered(self, values: FloatArray, settled: Settled) -> FloatArray:
        """Note the lags of those that answered; each row is there once."""
        rows = settled.rows[settled.finished]
        after = values.copy()
        after[rows] = np.column_stack([values[rows, 1:], np.full(rows.size, float(settled.lag))])
        return after


@dataclass(frozen=True)
class Paced:
    """What Pisces remembers."""

    epsilon: float
    last: float = 0.0
    """When the last step was made."""


@dataclass(frozen=True)
class Pisces(Scheme):
    """Useful, fresh clients; the slowest of them paces steps.

    Args:
        in_flight: C: clients at work at any time, 0 = all that can be reached; the authors' 20 of 200.
        discount: power of 1 + mean lag that a client's utility is divided by.
        staleness: power of 1 + lag that an answer's weight is divided by.
        epsilon: chance at first that a place goes to a client not tried yet.
        epsilon_decay: factor on it after every step.
        epsilon_least: where the decay ends.
    """

    name: ClassVar[str] = "pisces"
    needs: ClassVar[frozenset[Need]] = frozenset()
    uses: ClassVar[frozenset[Need]] = frozenset({Need.DELAY})
    rounds: ClassVar[bool] = False
    accumulates: ClassVar[tuple[Accumulator, ...]] = (RecentLags(),)

    in_flight: int = 20
    discount: float = 0.5
    staleness: float = 0.5
    epsilon: float = 0.9
    epsilon_decay: float = 0.98
    epsilon_least: float = 0.3

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        whole(self.in_flight, 0, "in_flight of pisces")
        for option in ("discount", "staleness"):
            at_least(getattr(self, option), 0, f"{option} of pisces")
            finite(getattr(self, option), f"{option} of pisces")
        between(self.epsilon_decay, 0, 1, "epsilon_decay of pisces")
        if not 0 <= self.epsilon_least <= self.epsilon <= 1:
            raise InputError(
                f"expected 0 <= epsilon_least <= epsilon <= 1 of pisces, but {self.epsilon_least} and "
                f"{self.epsilon} came"
            )

    def init(self) -> Paced:
        """No step was made."""
        return Paced(self.epsilon)

    def observe(self, state: Paced, report: Report) -> Paced:
        """Return the state as it is: the next View contains the report."""
        return state

    def decide(self, state: Paced, view: View, rng: np.random.Generator) -> tuple[Move, Paced]:
        """Step if it is time, and fill free places."""
        hand = view.in_hand
        capacity = self.in_flight or view.clients
        start = self._starting(view, max(0, capacity - len(view.in_flight)), state.epsilon, rng)
        # Who has just answered was at work as well, and its slowness does not count any more.
        interval = _longest(view, view.in_flight.clients) / capacity
        apply, facts, left = None, {}, len(hand)
        if len(hand) and view.now - state.last >= interval * (1.0 - ROUNDING):
            lag = view.step - hand.step
            apply = Apply(hand.ids, self._weights(view, lag))
            facts = {"mean lag": float(lag.mean()), "largest lag": int(lag.max()), "epsilon": state.epsilon}
            epsilon = max(self.epsilon_least, state.epsilon * self.epsilon_decay)
            state, left = replace(state, last=view.now, epsilon=epsilon), 0
        # It is asked after every answer, to fill the place; and at the time of the step, which it may be alone for.
        going = _longest(view, np.concatenate([view.in_flight.clients, start])) / capacity
        until = state.last + going - view.now
        wait = Wait(left + 1, until if left and until > 0 else math.inf)
        return Move(start, np.zeros(start.size), apply, wait=wait, why=Diagnostics(facts=facts)), state

    def _starting(self, view: View, room: int, epsilon: float, rng: np.random.Generator) -> IntArray:
        """Return who takes the free places, rows ascending."""
        rows = view.candidates
        count = min(room, rows.size)
        tried = (view.participations[rows] > 0) & ~np.isnan(view.loss[rows])
        known, new = rows[tried], rows[~tried]
        wanted = int(rng.binomial(count, epsilon))
        explored = min(max(wanted, count - known.size), new.size)
        best = largest(known, self.utility(view)[known], count - explored, rng)
        return np.sort(np.concatenate([best, rng.choice(new, size=explored, replace=False)]))

    def utility(self, view: View) -> FloatArray:
        """(n,) what clients are worth: NaN where none was heard yet."""
        lags = view.accumulated[RecentLags.name]
        seen = ~np.isnan(lags)
        mean = np.where(seen, lags, 0.0).sum(axis=1) / np.maximum(seen.sum(axis=1), 1)
        return np.asarray(sizes(view) * view.loss / (1.0 + mean) ** self.discount)

    def _weights(self, view: View, lag: IntArray) -> FloatArray:
        share = view.share[view.in_hand.clients]
        weights = (share if share.any() else np.ones(lag.size)) * (1.0 + lag) ** -self.staleness
        return np.asarray(weights / weights.sum())


def _longest(view: View, rows: IntArray) -> float:
    """Return the longest latency among clients: 0 where none is known."""
    seconds = view.delay[rows]
    return float(np.max(seconds, initial=0.0, where=~np.isnan(seconds)))
