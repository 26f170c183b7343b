"""What pace remembers of its clients' answers: their recent weights, and how late answers come."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace.core.accumulators import Accumulator, Settled

DECAY = 0.5
"""What a round's weights count for against those of the next round."""
ANSWERS = 256
"""Answers whose lateness is remembered."""


class RecentWeight(Accumulator):
    """(n,) the weight that each client had in past aggregates, each round counting half as much as the next."""

    name: ClassVar[str] = "recent_weight"
    per_client: ClassVar[bool] = True

    def stepped(self, values: FloatArray, rows: IntArray, weights: FloatArray) -> FloatArray:
        """Add the weights of a step, and let all fade."""
        added = values.copy()
        np.add.at(added, rows, weights)
        return added * DECAY


class AnswerLateness(Accumulator):
    """(h, 2) recent answers, the newest last: the seconds taken over those expected; 1 = given up by then, else 0."""

    name: ClassVar[str] = "lateness"
    per_client: ClassVar[bool] = False
    shape: ClassVar[tuple[int, ...]] = (2,)

    def answered(self, values: FloatArray, settled: Settled) -> FloatArray:
        """Compare what clients took with what was expected of them."""
        known = (settled.expected > 0) & (settled.seconds > 0)  # not where one is NaN
        ratios = settled.seconds[known] / settled.expected[known]
        return np.concatenate([values, np.column_stack([ratios, ~settled.finished[known]])])[-ANSWERS:]
