"""What the ledger accumulates for pace: the clients' recent weights, and the lateness of answers."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace.core.types import Accumulator, Settled

DECAY = 0.5
"""Factor on earlier weights per round."""
ANSWERS = 256
"""Number of newest answers to keep."""


class RecentWeight(Accumulator):
    """(n,) each client's weight summed over past aggregates; a round counts half as much as the round after it."""

    name: ClassVar[str] = "recent_weight"
    per_client: ClassVar[bool] = True

    def stepped(self, values: FloatArray, rows: IntArray, weights: FloatArray) -> FloatArray:
        """Add the weights of a step, then apply the decay."""
        added = values.copy()
        np.add.at(added, rows, weights)
        return added * DECAY


class AnswerLateness(Accumulator):
    """(h, 2) recent answers, newest last: seconds taken / seconds expected, and 1 if given up by then, else 0."""

    name: ClassVar[str] = "lateness"
    per_client: ClassVar[bool] = False
    shape: ClassVar[tuple[int, ...]] = (2,)

    def answered(self, values: FloatArray, settled: Settled) -> FloatArray:
        """Append the newest answers, with the ratio of actual to expected seconds."""
        known = (settled.expected > 0) & (settled.seconds > 0)  # False for NaN
        ratios = settled.seconds[known] / settled.expected[known]
        return np.concatenate([values, np.column_stack([ratios, ~settled.finished[known]])])[-ANSWERS:]
