"""Buffers that answers are collected in: what FedBuff, FedAsync and CA2FL have in common."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace.core.tasks import Apply, Move, Wait
from fedpace.core.types import Diagnostics, View


def refill(view: View, in_flight: int, rng: np.random.Generator) -> IntArray:
    """Return who takes the places of those that answered, drawn at random: `in_flight` are at work, or all if it is 0.

    Rows are ascending.
    """
    rows = view.candidates
    room = min(rows.size, max(0, (in_flight or view.clients) - len(view.in_flight)))
    return np.sort(rng.choice(rows, size=room, replace=False))


def counted(view: View, rows: IntArray) -> FloatArray:
    """Return share x clients, whose mean is 1: so that steps are towards the same objective as FedAvg's."""
    return np.asarray(view.share[rows] * view.clients)


def buffered(
    view: View,
    rng: np.random.Generator,
    *,
    buffer: int,
    in_flight: int,
    weigh: Callable[[IntArray, FloatArray], FloatArray],
) -> Move:
    """Step where the buffer is full, and let others take the places of those that answered.

    Args:
        view: what is known.
        rng: draws.
        buffer: answers that make a step.
        in_flight: clients at work; 0 = all that can be reached.
        weigh: what answers weigh, by their lags and by `counted`.
    """
    hand, apply, facts = view.in_hand, None, {}
    if len(hand) >= buffer:  # answers that come at the same instant may be more: the others make the next step
        lag = view.step - hand.step[:buffer]
        apply = Apply(hand.ids[:buffer], weigh(lag, counted(view, hand.clients[:buffer])), "delta")
        facts = {"mean lag": float(lag.mean()), "largest lag": int(lag.max())}
    start = refill(view, in_flight, rng)
    left = len(hand) - (0 if apply is None else buffer)
    # It is asked again after the next answer, since somebody else is to take the place of whoever sent it.
    wait = Wait(min(left + 1, buffer))
    return Move(start, np.zeros(start.size), apply, wait=wait, mode="delta", why=Diagnostics(facts=facts))
