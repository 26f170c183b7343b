"""What one client may weigh in a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace.core.outliers import robust
from fedpace.core.tasks import Move
from fedpace.core.types import View

CAP, FLEET = 0.5, 20
"""Of a cohort's weight, and clients in a roster below which there is no limit. At least 0.5, so that one client at the
most can be above it."""
CAP_WITHOUT_ROUNDS = 0.75
"""The same where a scheme works without rounds: its steps may be of two answers, of which one may be worth more."""

MOST_SAMPLES, SPREADS = 10.0, 5.0
"""Times the median number of samples, and robust standard deviations of the logarithms above it, beyond which a claimed
number counts for no more: who claims a billion would be the objective."""


def plausible(samples: FloatArray) -> FloatArray:
    """(n,) how many samples clients count for, of so many that they say; in rosters of `FLEET` or more."""
    told = np.log(samples[samples > 0])
    if samples.size < FLEET or not told.size:
        return samples
    middle, spread = robust(told)
    return np.asarray(np.minimum(samples, np.exp(middle + max(np.log(MOST_SAMPLES), SPREADS * spread))))


def bounded(move: Move, view: View, trusted: FloatArray) -> Move:
    """Return a move of a policy without rounds in whose step no client weighs more than it may.

    Args:
        move: the policy's.
        view: what it was shown.
        trusted: (n,) what clients count for: answers may be in hand, or come, of who is not trusted any more.
    """
    apply = move.apply
    if apply is None:
        return move
    weights = apply.weights
    if (trusted != 1).any():
        rows = dict(zip(view.in_hand.ids.tolist(), view.in_hand.clients.tolist(), strict=True))
        weights = weights * trusted[[rows[task] for task in apply.ids.tolist()]]
        if apply.mode == "average":
            total = float(weights.sum())
            weights = weights * (float(apply.weights.sum()) / total) if total > 0 else apply.weights
    counting = np.flatnonzero(weights > 0)
    if apply.mode == "average" and view.clients >= FLEET and counting.size > 1 and weights.max() > CAP_WITHOUT_ROUNDS:
        weights = weights.copy()
        weights[counting] = capped(weights[counting], CAP_WITHOUT_ROUNDS)
    return move if weights is apply.weights else replace(move, apply=replace(apply, weights=weights))


def capped(weights: FloatArray, cap: float) -> FloatArray:
    """Return weights of sum 1, none above `cap` where there are several; what is above goes to the others."""
    total = float(weights.sum())
    if total <= 0:
        return weights
    if abs(total - 1.0) > 1e-12:
        weights = weights / total
    if weights.size < 2 or weights.max() <= cap:
        return weights
    heaviest = int(np.argmax(weights))
    rest = 1.0 - weights[heaviest]
    others = np.full(weights.size, 1 / (weights.size - 1)) if rest <= 0 else weights / rest
    others[heaviest] = 0.0
    result = (1.0 - cap) * others / others.sum()
    result[heaviest] = cap
    return np.asarray(result)
