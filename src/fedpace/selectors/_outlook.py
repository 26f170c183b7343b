"""What a policy without rounds may expect: of those at work whether anything, and when; of those in hand agreement."""

from __future__ import annotations

import math

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace.core.types import View
from fedpace.numerics.arrivals import LEAST, Lateness
from fedpace.selectors._remembered import AnswerLateness

LATE = 2.0
"""Times as long as is expected of a client, after which it is not waited for any more."""


def nobody_else(view: View, fresh: IntArray) -> bool:
    """Whether nobody works on the current model, nor is about to begin, but those who have answered to it.

    Who has failed on it does not count, although it is tried again: a client that fails every time would be waited for
    for ever.

    Args:
        view: what is known.
        fresh: positions in hand of the answers to the current model.
    """
    going = view.in_flight.clients[view.in_flight.step == view.step]
    failed = view.failed.clients[view.failed.step == view.step]
    if not np.isin(going, failed).all() or patience(view) > 0:
        return False
    return bool(np.isin(view.candidates, np.concatenate([view.in_hand.clients[fresh], failed])).all())


def patience(view: View) -> float:
    """Return for how long those that work on older models may be waited for: they begin on this one when they come."""
    flying = view.in_flight
    old = flying.step < view.step
    left = LATE * view.delay[flying.clients[old]] - (view.now - flying.began[old])
    return float(np.nanmax(left, initial=0.0))  # of whom nothing is known nothing is expected


def remaining(view: View, going: IntArray) -> FloatArray:
    """Return how long tasks are expected to take still, given that they have not ended yet."""
    flying = view.in_flight
    expected = np.nan_to_num(view.delay[flying.clients[going]], nan=math.inf)  # whoever nothing is known of may be last
    passed = view.now - flying.began[going]
    answers = view.accumulated.get(AnswerLateness.name)
    if answers is None or len(answers) < LEAST:
        return np.where(passed < expected, expected - passed, passed)
    lateness = Lateness.estimated(answers[:, 0], answers[:, 1] > 0)
    mass = np.concatenate([np.cumsum(lateness.mass[::-1])[::-1], [0.0]])
    moment = np.concatenate([np.cumsum((lateness.mass * lateness.ratios)[::-1])[::-1], [0.0]])
    ratio = np.divide(passed, expected, out=np.full(passed.size, math.inf), where=expected > 0)
    later = np.searchsorted(lateness.ratios, ratio, side="right")
    # Beyond all that was ever seen, what has taken long will take as long again.
    seen = mass[later] > 0
    longest = np.divide(moment[later], mass[later], out=np.zeros(passed.size), where=seen) * expected - passed
    return np.maximum(np.where(seen, longest, passed), 0.0)


def disagreement(updates: FloatArray | None, fresh: IntArray) -> float:
    """Return the squared error of one client's update, in units of the squared length of what they agree on."""
    if updates is None:
        return 1.0
    told = updates[fresh]
    told = told[~np.isnan(told).any(axis=1)]
    if len(told) < 2:
        return math.inf
    gram = told @ told.T
    count = len(told)
    within = float(np.trace(gram)) / count
    between_them = (float(gram.sum()) - float(np.trace(gram))) / (count * (count - 1))
    return (within - between_them) / between_them if between_them > 0 else math.inf
