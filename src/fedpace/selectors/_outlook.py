"""Forecasts for asynchronous policies: when clients in flight will answer, and how far the answers in hand agree."""

from __future__ import annotations

import math

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace.core.types import View
from fedpace.numerics.arrivals import LEAST, Lateness
from fedpace.selectors._remembered import AnswerLateness

LATE = 2.0
"""A client is no longer waited for after this many times its expected delay."""


def nobody_else(view: View, fresh: IntArray) -> bool:
    """Return whether all possible answers to the current model are in hand, so that waiting brings nothing.

    Clients that failed on the current model do not count, even if they are tried again. Otherwise the server would wait
    forever for a client that always fails.

    Args:
        view: the scheme's view of the fleet.
        fresh: positions, among the answers in hand, of answers to the current model.
    """
    going = view.in_flight.clients[view.in_flight.step == view.step]
    failed = view.failed.clients[view.failed.step == view.step]
    if not np.isin(going, failed).all() or patience(view) > 0:
        return False
    return bool(np.isin(view.candidates, np.concatenate([view.in_hand.clients[fresh], failed])).all())


def patience(view: View) -> float:
    """Return how long to wait for clients that train on older models; each starts on this one when it answers."""
    flying = view.in_flight
    old = flying.step < view.step
    left = LATE * view.delay[flying.clients[old]] - (view.now - flying.began[old])
    return float(np.nanmax(left, initial=0.0))  # clients with unknown delay count 0


def remaining(view: View, going: IntArray) -> FloatArray:
    """Return the expected remaining seconds of the tasks `going`, given that they have not finished yet."""
    flying = view.in_flight
    expected = np.nan_to_num(view.delay[flying.clients[going]], nan=math.inf)  # unknown delays sort last
    passed = view.now - flying.began[going]
    answers = view.accumulated.get(AnswerLateness.name)
    if answers is None or len(answers) < LEAST:
        return np.where(passed < expected, expected - passed, passed)
    lateness = Lateness.estimated(answers[:, 0], answers[:, 1] > 0)
    mass = np.concatenate([np.cumsum(lateness.mass[::-1])[::-1], [0.0]])
    moment = np.concatenate([np.cumsum((lateness.mass * lateness.ratios)[::-1])[::-1], [0.0]])
    ratio = np.divide(passed, expected, out=np.full(passed.size, math.inf), where=expected > 0)
    later = np.searchsorted(lateness.ratios, ratio, side="right")
    # A task later than all earlier answers is expected to take as long again as it has taken so far.
    seen = mass[later] > 0
    longest = np.divide(moment[later], mass[later], out=np.zeros(passed.size), where=seen) * expected - passed
    return np.maximum(np.where(seen, longest, passed), 0.0)


def disagreement(updates: FloatArray | None, fresh: IntArray) -> float:
    """Return the squared error of one client's update, relative to the squared length of the common part.

    Infinite with fewer than two updates, or if they have nothing in common; 1 if the host reports no updates.
    """
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
