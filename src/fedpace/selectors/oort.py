"""Oort: selects clients that are both useful and fast, and explores new clients.

Lai, Zhu, Madhyastha and Chowdhury, "Oort: Efficient Federated Learning via Guided Participant Selection" (OSDI 2021). A
client's utility is U_i = size x root mean square loss. The score of an explored client is U scaled to [0, 1], plus
sqrt(0.1 ln r / L_i), where L_i is the round in which it last took part. Clients slower than T have their score
multiplied by (T / t_i)^alpha. A decaying part epsilon of the cohort goes to new clients, by size and speed. The pacer
moves T: it raises T while utility is steady, to admit slower clients, and lowers T when utility jumps.

Where we depart, and why:
- Hosts report mean losses instead of root mean squares: U_i = samples_i x loss_i. If the host reports no sample counts,
  shares replace them. If only some counts are missing, the mean of the others replaces them.
- While no client is new, the part epsilon of a cohort is drawn at random, as in the authors' code. After a warm-up with
  all clients no client is new, so lower `epsilon` then.
- The scheme keeps no state per client. The ledger shows which clients are explored (they took part and have a loss). It
  also gives the utility for the pacer: the clients with a loss from the last round that had taken part before.
- Failed clients keep their last loss (the authors' code assigns the mean). The blacklist, off in the authors' code, is
  left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.errors import InputError
from fedpace._base.options import FINITE, Above, AtLeast, Between
from fedpace.core.rounds import cohort_size, over_asked
from fedpace.core.types import Cohort, Diagnostics, Need, Scheme, View
from fedpace.selectors._drawing import draw_distinct, largest, share_weights

STALENESS = 0.1
STEADY, JUMP = 0.1, 5.0
"""Relative changes of utility between two windows: at most STEADY raises the threshold, at least JUMP lowers it."""


@dataclass(frozen=True)
class Pacer:
    """State of Oort."""

    epsilon: float
    threshold: float
    """Percentile of the delays; clients above it count as slow."""
    before: float = 0.0
    """Utility summed over the previous window."""
    now: float = 0.0
    """Utility summed over the current window so far."""


@dataclass(frozen=True)
class Oort(Scheme):
    """Useful and fast clients, and new ones.

    Args:
        k: number of answers wanted per round.
        overcommit: clients asked per answer wanted; the round ends after k answers.
        alpha: exponent of the penalty for slow clients.
        epsilon: part of the first cohort for new clients, or for random ones if no client is new.
        epsilon_decay: factor on epsilon per round.
        epsilon_least: smallest epsilon.
        cutoff: explored clients are drawn from those with at least this fraction of the score of the last place.
        threshold: percentile of the delays that counts as fast enough at first. The authors' 10 suits fleets much
            larger than a cohort. If fewer clients than asked are that fast, speed decides about the others.
        pacer_step: rounds per window of the pacer.
        pacer_delta: percentiles by which the pacer moves the threshold.
        clip: quantile at which utilities are cut.
        window: new clients are drawn from the best candidates, this many times as many as needed.
    """

    name: ClassVar[str] = "oort"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY})
    reads_losses: ClassVar[bool] = True

    k: Annotated[int, AtLeast(1)] = 10
    overcommit: Annotated[float, AtLeast(1), FINITE] = 1.3
    alpha: Annotated[float, AtLeast(0)] = 2.0
    epsilon: float = 0.9
    epsilon_decay: Annotated[float, Between(0, 1, "(]")] = 0.95
    epsilon_least: float = 0.2
    cutoff: Annotated[float, Between(0, 1, "(]")] = 0.7
    threshold: Annotated[float, Between(0, 100, "(]")] = 10.0
    pacer_step: Annotated[int, AtLeast(1)] = 20
    pacer_delta: Annotated[float, Above(0)] = 5.0
    clip: Annotated[float, Between(0, 1, "(]")] = 0.98
    window: Annotated[float, AtLeast(1)] = 5.0

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid, or if two do not go together."""
        super().__post_init__()
        if not 0 <= self.epsilon_least <= self.epsilon <= 1:
            raise InputError(
                f"expected 0 <= epsilon_least <= epsilon <= 1 of {self.name}, but {self.epsilon_least} and "
                f"{self.epsilon} came"
            )

    def init(self) -> Pacer:
        """Return the initial exploration part and threshold."""
        return Pacer(self.epsilon, self.threshold)

    def select(self, state: Pacer, view: View, rng: np.random.Generator) -> tuple[Cohort, Pacer]:
        """Select explored clients by score, then new clients, then random ones, and return the cohort."""
        wanted = cohort_size(self.k, view, self.name)
        state = self._paced(state, view)
        rows = view.candidates
        asked = over_asked(wanted, self.overcommit, rows.size)
        tried = (view.participations[rows] > 0) & ~np.isnan(view.loss[rows])
        known, new = rows[tried], rows[~tried]
        limit = preferred_delay(view.delay[rows], state.threshold)
        exploited = self._exploit(view, known, min(asked - round(asked * state.epsilon), known.size), limit, rng)
        explored = self._explore(view, new, min(asked - exploited.size, new.size), limit, rng)
        clients = np.concatenate([exploited, explored])
        rest = np.setdiff1d(rows, clients)
        clients = np.concatenate([clients, rng.choice(rest, size=asked - clients.size, replace=False)])
        patience = float(np.sort(view.delay[clients])[wanted - 1])
        why = Diagnostics(
            predicted_seconds=patience,
            facts={
                "epsilon": state.epsilon,
                "threshold": state.threshold,
                "preferred_seconds": limit if math.isfinite(limit) else None,
                "exploited": int(exploited.size),
                "explored": int(explored.size),
                "asked": asked,
            },
            reasons={
                **dict.fromkeys(clients.tolist(), "filled up at random"),
                **dict.fromkeys(exploited.tolist(), "useful and fast"),
                **dict.fromkeys(explored.tolist(), "not tried yet"),
            },
        )
        clients = np.sort(clients)
        quorum = wanted if asked > wanted else 0
        epsilon = max(self.epsilon_least, state.epsilon * self.epsilon_decay)
        cohort = Cohort(clients, share_weights(view, clients), quorum=quorum, why=why)
        return cohort, replace(state, epsilon=epsilon)

    def observe(self, state: Pacer, report: object) -> Pacer:
        """Return the state as it is: the next View contains the report."""
        return state

    def _exploit(self, view: View, rows: IntArray, count: int, limit: float, rng: np.random.Generator) -> IntArray:
        if not count:
            return rows[:0]
        score = scores(
            sizes(view)[rows] * view.loss[rows],
            last=view.loss_step[rows] + 1,
            now=view.step + 1,
            slowdown=penalty(view.delay[rows], limit, self.alpha),
            clip=self.clip,
        )
        least = self.cutoff * float(np.sort(score)[-count])
        pool = score >= least
        return draw_distinct(rows[pool], score[pool], count, rng)

    def _explore(self, view: View, rows: IntArray, count: int, limit: float, rng: np.random.Generator) -> IntArray:
        prospect = sizes(view)[rows] * penalty(view.delay[rows], limit, self.alpha)
        best = largest(np.arange(rows.size), prospect, math.ceil(self.window * count), rng)
        return draw_distinct(rows[best], prospect[best], count, rng)

    def _paced(self, state: Pacer, view: View) -> Pacer:
        """Add the last round's utility; at the end of a window, move the threshold."""
        if view.step == 0:
            return state
        exploited = (view.loss_step == view.step - 1) & (view.participations > 1)
        useful = float((sizes(view) * view.loss)[exploited].mean()) if exploited.any() else 0.0
        state = replace(state, now=state.now + useful)
        if view.step % self.pacer_step:
            return state
        threshold = state.threshold
        if view.step >= 2 * self.pacer_step:
            change = abs(state.now - state.before)
            if change <= STEADY * state.before:
                threshold = min(100.0, threshold + self.pacer_delta)
            elif change >= JUMP * state.before:
                threshold = max(self.pacer_delta, threshold - self.pacer_delta)
        return replace(state, threshold=threshold, before=state.now, now=0.0)


def sizes(view: View) -> FloatArray:
    """Return each client's number of samples, or the shares if the host reports no counts."""
    if view.samples is None or np.isnan(view.samples).all():
        return view.share
    return np.where(np.isnan(view.samples), np.nanmean(view.samples), view.samples)


def preferred_delay(delay: FloatArray, percentile: float) -> float:
    """Return T: the delay at this percentile; infinite at 100."""
    if percentile >= 100:
        return math.inf
    return float(np.sort(delay)[min(int(delay.size * percentile / 100), delay.size - 1)])


def penalty(delay: FloatArray, limit: float, alpha: float) -> FloatArray:
    """Return (T / t)^alpha for clients slower than T, and 1 for others."""
    slow = delay > limit
    return np.asarray(np.divide(limit, delay, out=np.ones_like(delay), where=slow) ** alpha)


def scores(utility: FloatArray, *, last: IntArray, now: int, slowdown: FloatArray, clip: float) -> FloatArray:
    """Return the scores of explored clients; `last` and `now` are rounds, counted from 1."""
    low, high = float(utility.min()), float(utility.max())
    cut = float(np.sort(utility)[min(int(utility.size * clip), utility.size - 1)])
    scaled = (np.minimum(utility, cut) - low) / (high - low) if high > low else np.ones_like(utility)
    return np.asarray((scaled + np.sqrt(STALENESS * math.log(now) / np.maximum(last, 1))) * slowdown)
