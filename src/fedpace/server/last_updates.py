"""The mean of every client's last update, as a server step: MIFA without rounds, ACE and ACED.

Gu, Huang, Zhang and Huang, "Fast Federated Learning in the Presence of Arbitrary Device Unavailability" (NeurIPS 2021;
MIFA). Chang et al., "Mitigating Participation Imbalance Bias in Asynchronous Federated Learning" (2025; ACE and ACED).
The server keeps the last update h_i of every client. New answers replace those of their clients, then

    x <- x + lr sum_i share_i h_i / sum_i share_i,        over the clients i that have answered.

ACED leaves out entries that are older than `max_age` steps; age counts from the answer, not from the model that the
client received. If every client answers in every step, the step is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fedpace._base.options import FINITE, Above, AtLeast, Options
from fedpace.core.server_rule import Answers, Part, Stack, Vector, like
from fedpace.server._counting import robust_step, still_counting

ROOM = 2**30
"""Bytes for stored updates. When they are used up, the clients that answered longest ago are forgotten."""


@dataclass(frozen=True, eq=False)
class LastUpdatesState:
    """The last update of each client, in the order of the clients' last answers."""

    updates: Stack
    clients: tuple[object, ...] = ()
    shares: tuple[float, ...] = ()
    heard: tuple[int, ...] = ()
    """Number of the step that brought each update."""
    steps: int = 0
    """Number of steps so far."""


@dataclass(frozen=True)
class LastUpdates(Options):
    """The mean of the clients' last updates.

    Args:
        lr: the server's step size.
        max_age: number of steps after which an update no longer counts (ACED); 0 = it always counts.
    """

    name: ClassVar[str] = "last-updates"
    takes: ClassVar[frozenset[Part]] = frozenset({"rows", "corrected"})

    lr: Annotated[float, Above(0), FINITE] = 1.0
    max_age: Annotated[int, AtLeast(0)] = 0

    def init(self, zero: Vector) -> LastUpdatesState:
        """Return an empty table."""
        return LastUpdatesState(Stack.none(zero))

    def apply(self, state: LastUpdatesState, model: Vector, answers: Answers) -> tuple[Vector, LastUpdatesState]:
        """Return the next model and the table. Without `answers.sources`, take the plain step and store nothing."""
        if len(answers.sources) != len(answers.rows):
            return model + self.lr * answers.step, state
        places, weighed = still_counting(state.clients, state.shares, answers.share_of)
        table = {
            state.clients[place]: (state.updates.rows[place], share, state.heard[place])
            for place, share in zip(places, weighed, strict=True)
        }
        robust, used = robust_step(answers, table)
        for row, source, good in zip(answers.rows, answers.sources, used.tolist(), strict=True):
            if good:  # the later of two answers wins
                table.pop(source.client, None)  # reinsert last: order of hearing
                table[source.client] = (np.asarray(row), source.share, state.steps)
        step = np.zeros(answers.step.shape[0])
        counting = [entry for entry in table.values() if not self.max_age or state.steps - entry[2] <= self.max_age]
        total = sum(share for _, share, _ in counting)
        for update, share, _ in counting:
            step += share / total * update
        room = max(1, ROOM // (4 * step.size))
        kept = dict(list(table.items())[-room:])
        after = LastUpdatesState(
            state.updates.of(entry[0] for entry in kept.values()),
            tuple(kept),
            tuple(entry[1] for entry in kept.values()),
            tuple(entry[2] for entry in kept.values()),
            state.steps + 1,
        )
        return model + self.lr * like(answers.step, step if robust is None else robust), after
