"""CA2FL's server step: the mean of all clients' last updates, corrected by the new answers.

Wang, Cao, Wu, Chen and Chen, "Tackling the Data Heterogeneity in Asynchronous Federated Learning with Cached Update
Calibration" (ICLR 2024). a_i are the weights of the answers. h_i is the cached last update of client i, 0 before its
first answer:

    x <- x + lr (sum_i share_i h_i + sum_i a_i (u_i - h_i)),    then h_i <- u_i for the clients that answered.

If every client answers and a_i = share_i, the cache cancels and the step is FedAvg. The method corresponds to SAGA.
With weights equal to the shares it is MIFA (Gu et al. 2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fedpace._base.options import FINITE, Above, Options
from fedpace.core.server_rule import Answers, Part, Vector, like
from fedpace.server._counting import still_counting

ROOM = 2**30
"""Bytes for cached updates. When they are used up, the clients that answered longest ago are forgotten."""


@dataclass(frozen=True, eq=False)
class Cache:
    """The last update of each client."""

    cached: Vector
    """(m, d) h_i, in the order of the clients' last answers."""
    cached_clients: tuple[object, ...] = ()
    """(m,) the clients."""
    cached_shares: tuple[float, ...] = ()
    """(m,) their shares of the objective."""


@dataclass(frozen=True)
class Calibrated(Options):
    """The mean of all last updates, corrected by new ones.

    Args:
        lr: the server's step size.
    """

    name: ClassVar[str] = "calibrated"
    takes: ClassVar[frozenset[Part]] = frozenset({"rows", "corrected"})

    lr: Annotated[float, Above(0), FINITE] = 1.0

    def init(self, zero: Vector) -> Cache:
        """Return an empty cache."""
        return Cache(like(zero, np.zeros((0, zero.shape[0]))))

    def apply(self, state: Cache, model: Vector, answers: Answers) -> tuple[Vector, Cache]:
        """Return the next model and the cache. Without `answers.sources`, take the plain step and cache nothing."""
        if len(answers.sources) != len(answers.rows):
            return model + self.lr * answers.step, state
        places, weighed = still_counting(state.cached_clients, state.cached_shares, answers.share_of)
        heard = [state.cached_clients[place] for place in places]
        cached = dict(zip(heard, np.asarray(state.cached)[places], strict=True))
        shares = dict(zip(heard, weighed, strict=True))
        step, used = np.asarray(answers.step).copy(), np.ones(len(answers.rows), dtype=np.bool_)
        for client, update in cached.items():
            step += shares[client] * update
        for weight, source in zip(answers.weights.tolist(), answers.sources, strict=True):
            if source.client in cached:
                step -= weight * cached[source.client]
        if answers.combine is not None:
            mean = sum((shares[client] * update for client, update in cached.items()), np.zeros(step.size))
            own = [cached.get(source.client, np.zeros(step.size)) for source in answers.sources]
            rows = np.array([np.asarray(row) for row in answers.rows]) - own + mean / float(answers.weights.sum())
            combined = answers.combine(rows, answers.weights)
            step, used = combined.step, combined.weights > 0
        counted = zip(answers.rows, answers.sources, used.tolist(), strict=True)
        for row, source in ((row, source) for row, source, good in counted if good):  # the later of two wins
            cached.pop(source.client, None)  # reinsert last: order of hearing
            cached[source.client] = np.asarray(row)
            shares[source.client] = source.share
        clients = tuple(cached)[-max(1, ROOM // (8 * step.size)) :]
        updates = np.array([cached[client] for client in clients]).reshape(len(clients), step.size)
        after = Cache(like(answers.step, updates), clients, tuple(shares[client] for client in clients))
        return model + self.lr * like(answers.step, step), after
