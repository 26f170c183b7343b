"""What policies without rounds share: the buffer of FedBuff and others, and the table that waits for every client."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace.core.tasks import Apply, Move, Wait
from fedpace.core.types import Diagnostics, Stateless, View
from fedpace.selectors._drawing import share_weights


def refill(view: View, in_flight: int, rng: np.random.Generator) -> IntArray:
    """Return random clients to start, so that `in_flight` clients train, or all if it is 0; rows are ascending."""
    rows = view.candidates
    room = min(rows.size, max(0, (in_flight or view.clients) - len(view.in_flight)))
    return np.sort(rng.choice(rows, size=room, replace=False))


def counted(view: View, rows: IntArray) -> FloatArray:
    """Return share x clients, which has mean 1. With this factor, steps follow the same objective as FedAvg."""
    return np.asarray(view.share[rows] * view.clients)


class Buffered(Stateless):
    """Base class of schemes that step when `buffer` answers are in hand, and keep `in_flight` clients training."""

    rounds: ClassVar[bool] = False

    buffer: Any
    in_flight: Any

    def weigh(self, lag: IntArray, counted: FloatArray) -> FloatArray:
        """Return the weights of answers from their lags and from `counted`: by default their mean."""
        return np.asarray(counted / self.buffer)

    def decide(self, state: None, view: View, rng: np.random.Generator) -> tuple[Move, None]:
        """Step if the buffer is full, and start clients in the place of those that answered."""
        hand, apply, facts, buffer = view.in_hand, None, {}, int(self.buffer)
        if view.minimum > 1:
            buffer = max(buffer, prefix_of_clients(hand.clients, view.minimum))
        if len(hand) >= buffer:  # surplus simultaneous answers make the next step
            lag = view.step - hand.step[:buffer]
            apply = Apply(hand.ids[:buffer], self.weigh(lag, counted(view, hand.clients[:buffer])), "delta")
            facts = {"mean lag": float(lag.mean()), "largest lag": int(lag.max())}
        start = refill(view, self.in_flight, rng)
        left = len(hand) - (0 if apply is None else buffer)
        # Decide again after the next answer, to start another client in the place of its sender.
        wait = Wait(min(left + 1, buffer))
        return Move(start, np.zeros(start.size), apply, wait=wait, mode="delta", why=Diagnostics(facts=facts)), None


def prefix_of_clients(rows: IntArray, clients: int) -> int:
    """Return how many of the first answers have this many different clients; one more than all if they have fewer."""
    first = np.sort(np.unique(rows, return_index=True)[1])
    return int(first[clients - 1]) + 1 if first.size >= clients else rows.size + 1


def missing(view: View) -> bool:
    """Return whether a client that can be reached has no answer in hand.

    Clients that failed since the last step do not count, even if they are tried again. Otherwise the server would wait
    forever for a client that always fails.
    """
    reached = np.concatenate([view.candidates, view.in_flight.clients])
    return not np.isin(reached, np.concatenate([view.in_hand.clients, view.failed.clients])).all()


def mean_weights(view: View, rows: IntArray) -> FloatArray:
    """Return weights that average each client's answers, then clients by shares; they sum to 1.

    Args:
        view: the scheme's view of the fleet.
        rows: the client of each answer; a client may have several.
    """
    clients, place, counts = np.unique(rows, return_inverse=True, return_counts=True)
    return np.asarray((share_weights(view, clients) / counts)[place])
