"""Momentum approximation: weights on all past steps such that stale answers get the weight that momentum would give.

Yu, Song, Wang and Chitnis, "Momentum Approximation in Asynchronous Private Federated Learning" (FL@FM-NeurIPS 2024).
In step r, the answers were trained from several versions s of the model: the aggregate is R_r = sum_s W_rs g_s, where
W_rs is the weight of the answers from version s. Synchronous momentum would move by sum_s b^(t - s) g_s in step t. The
server therefore moves by sum_r c_r R_r with

    c = argmin |sum_r c_r W_r - (b^(t - s))_s|^2.

Only the weights W are needed for it, so secure aggregation and noise on the aggregates do not interfere. If no answer
is stale, W is the identity, and the step is that of FedAvgM.

Departures: singular values of W below a tenth of the largest are dropped, since few answers are fresh, and exact
weights would be large, of both signs, and amplify noise (0.86 instead of 0.95 accuracy on digits with 20 clients). We
keep the last `history` aggregates only, and ignore versions that are older. We read the rule from the abstract and from
reviews of the paper, not from its own pseudo-code. Its light-weight variant, which does not store past aggregates, is
not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fedpace._base.options import FINITE, Above, AtLeast, Between, Options
from fedpace.core.server_rule import Answers, Part, Stack, Vector, like

SMALLEST = 0.1
"""Singular values below this part of the largest count as 0."""


@dataclass(frozen=True, eq=False)
class History:
    """Past aggregates, oldest first, and the versions that they are made of."""

    aggregates: Stack
    mixes: Vector
    """(h, h) row r: the weight in aggregate r of answers from each version; the last column is the newest version."""


@dataclass(frozen=True)
class MomentumApproximation(Options):
    """Past aggregates, weighted as in true momentum.

    Args:
        momentum: b, the part of the velocity that momentum keeps per step.
        lr: the server's step size.
        history: number of past aggregates to keep.
    """

    name: ClassVar[str] = "momentum-approximation"
    takes: ClassVar[frozenset[Part]] = frozenset({"sources"})

    momentum: Annotated[float, Between(0, 1, "[)")] = 0.9
    lr: Annotated[float, Above(0), FINITE] = 1.0
    history: Annotated[int, AtLeast(1)] = 50

    def init(self, zero: Vector) -> History:
        """Return an empty history."""
        return History(Stack.none(zero), like(zero, np.zeros((0, 0))))

    def apply(self, state: History, model: Vector, answers: Answers) -> tuple[Vector, History]:
        """Return the model after the step, and the history. Without `answers.sources`, no answer counts as stale."""
        kept = min(len(state.aggregates.rows), self.history - 1)
        rows = [*state.aggregates.rows[len(state.aggregates.rows) - kept :], np.asarray(answers.step)]
        mixes = np.zeros((kept + 1, kept + 1))
        if kept:
            mixes[:kept, :kept] = np.asarray(state.mixes)[-kept:, -kept:]
        lags = [answers.version - source.version for source in answers.sources]
        for lag, weight in zip(lags or [0] * answers.weights.size, answers.weights.tolist(), strict=True):
            if lag <= kept:
                mixes[kept, kept - lag] += weight
        wanted = self.momentum ** np.arange(kept, -1, -1.0)
        weights = np.linalg.lstsq(mixes.T, wanted, rcond=SMALLEST)[0]
        step = sum((weight * row for weight, row in zip(weights.tolist(), rows, strict=True)), np.zeros(len(rows[-1])))
        return model + self.lr * like(answers.step, step), History(state.aggregates.of(rows), like(model, mixes))
