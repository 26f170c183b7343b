"""Ringleader ASGD's server step: the mean over clients of each client's mean update in the current table.

Maranjyan and Richtarik, "Ringleader ASGD: The First Asynchronous SGD with Optimal Time Complexity under Data
Heterogeneity" (ICLR 2026). The table holds a mean m_i and a count for every client:

    x <- x + lr sum_i share_i m_i.

Answers of more than one client start a new table: they are all that the clients sent since the last table was filled.
The answer of a single client joins its client's mean. `fedpace.selectors.ringleader` decides which answers those are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fedpace._base.options import FINITE, Above, Options
from fedpace.core.server_rule import Answers, Part, Stack, Vector, like
from fedpace.server._counting import robust_step, still_counting


@dataclass(frozen=True, eq=False)
class Means:
    """The mean update of each client in the table."""

    means: Stack
    clients: tuple[object, ...] = ()
    shares: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    """Number of answers in each mean."""


@dataclass(frozen=True)
class ClientMeans(Options):
    """The mean of the clients' means.

    Args:
        lr: the server's step size.
    """

    name: ClassVar[str] = "client-means"
    takes: ClassVar[frozenset[Part]] = frozenset({"rows", "corrected"})

    lr: Annotated[float, Above(0), FINITE] = 1.0

    def init(self, zero: Vector) -> Means:
        """Return an empty table."""
        return Means(Stack.none(zero))

    def apply(self, state: Means, model: Vector, answers: Answers) -> tuple[Vector, Means]:
        """Return the next model and the table.

        If sources are missing or do not match the rows, take the plain step and leave the table unchanged.
        """
        if len(answers.sources) != len(answers.rows):
            return model + self.lr * answers.step, state
        table: dict[object, tuple[np.ndarray, float, int]] = {}
        if len({source.client for source in answers.sources}) == 1:
            places, weighed = still_counting(state.clients, state.shares, answers.share_of)
            table = {
                state.clients[place]: (state.means.rows[place].astype(np.float64), share, state.counts[place])
                for place, share in zip(places, weighed, strict=True)
            }
        robust, used = robust_step(answers, table)
        for row, source, good in zip(answers.rows, answers.sources, used.tolist(), strict=True):
            if good:
                mean, _, count = table.get(source.client, (np.zeros(answers.step.shape[0]), 0.0, 0))
                mean = mean + (np.asarray(row) - mean) / (count + 1)
                table[source.client] = (mean, source.share, count + 1)
        total = sum(share for _, share, _ in table.values())
        step = sum((share / total * mean for mean, share, _ in table.values()), np.zeros(answers.step.shape[0]))
        after = Means(
            state.means.of(entry[0] for entry in table.values()),
            tuple(table),
            tuple(entry[1] for entry in table.values()),
            tuple(entry[2] for entry in table.values()),
        )
        return model + self.lr * like(answers.step, step if robust is None else robust), after
