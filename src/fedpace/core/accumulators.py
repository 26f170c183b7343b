"""What a single scheme wants remembered of its clients' answers, beyond the scalars of its own state.

A scheme names its accumulators in the class variable `accumulates`. The ledger then keeps their values, lets clients
join and leave them and saves them, and the scheme finds them in `View.accumulated` by their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedpace._base.checks import BoolArray, FloatArray, IntArray
from fedpace._base.errors import InputError


@dataclass(frozen=True, eq=False)
class Settled:
    """Clients that answered, or were given up: one entry each."""

    rows: IntArray
    expected: FloatArray
    """Seconds that each was expected to take, before this answer told more; NaN = unknown."""
    seconds: FloatArray
    """That it took, or was waited for; NaN = unknown."""
    finished: BoolArray
    lag: int = 0
    """Steps made since they were given their model, the one in which they count not included."""


class Accumulator:
    """Values that grow from answer to answer: (n, ...) per client, or of any length. Subclasses say how."""

    name: ClassVar[str]
    per_client: ClassVar[bool]
    """Whether row i of the values is client i's."""
    shape: ClassVar[tuple[int, ...]] = ()
    """Of one entry."""

    def empty(self, entries: int) -> FloatArray:
        """Return the entries of clients of which nothing is known."""
        return np.zeros((entries, *self.shape))

    def answered(self, values: FloatArray, settled: Settled) -> FloatArray:
        """Take in answers of any kind, warm-ups included."""
        return values

    def stepped(self, values: FloatArray, rows: IntArray, weights: FloatArray) -> FloatArray:
        """Take in what the clients of a step weighed in it; who failed left its weight to the others."""
        return values


class Accumulated:
    """The values of a scheme's accumulators."""

    def __init__(self, accumulators: Sequence[Accumulator] = ()) -> None:
        self._all = tuple(accumulators)
        self.values: dict[str, FloatArray] = {each.name: each.empty(0) for each in self._all}

    def append(self, clients: int) -> None:
        """Add entries for clients that joined."""
        for each in self._all:
            if each.per_client:
                self.values[each.name] = np.concatenate([self.values[each.name], each.empty(clients)])

    def remove(self, rows: IntArray) -> None:
        """Drop the entries of clients that left."""
        for each in self._all:
            if each.per_client:
                self.values[each.name] = np.delete(self.values[each.name], rows, axis=0)

    def answered(self, settled: Settled) -> None:
        """Let every accumulator take answers in."""
        for each in self._all:
            self.values[each.name] = each.answered(self.values[each.name], settled)

    def stepped(self, rows: IntArray, weights: FloatArray) -> None:
        """Let every accumulator take a step in."""
        for each in self._all:
            self.values[each.name] = each.stepped(self.values[each.name], rows, weights)

    def load(self, saved: dict[str, FloatArray], clients: int) -> None:
        """Take over saved values."""
        for each in self._all:
            values = saved.get(each.name)
            if values is None or values.shape[1:] != each.shape or (each.per_client and len(values) != clients):
                found = "nothing" if values is None else f"shape {values.shape}"
                raise InputError(f"the saved ledger should hold {each.name!r} for {clients} clients, not {found}")
            self.values[each.name] = np.array(values, dtype=np.float64)
