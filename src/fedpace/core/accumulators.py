"""Accumulators: values that the ledger keeps for one scheme, such as statistics of each client's answers.

A scheme lists its accumulators in the class variable `accumulates`. The ledger updates and saves their values, and adds
or removes entries when clients join or leave. The scheme reads the values from `View.accumulated` by name.
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
    """Clients that answered or were given up; one entry per client."""

    rows: IntArray
    expected: FloatArray
    """Expected seconds of each client, estimated before this answer; NaN = unknown."""
    seconds: FloatArray
    """Seconds that the client took, or that the server waited in vain; NaN = unknown."""
    finished: BoolArray
    lag: int = 0
    """Staleness: steps made since the clients received their model, without the step that uses the answers."""


class Accumulator:
    """Values that are updated with every answer or step; subclasses define how.

    The values are an array of shape (n, ...) with one row per client, or of any length.
    """

    name: ClassVar[str]
    per_client: ClassVar[bool]
    """Whether row i of the values belongs to client i."""
    shape: ClassVar[tuple[int, ...]] = ()
    """Shape of one entry."""

    def empty(self, entries: int) -> FloatArray:
        """Return the initial values of new entries."""
        return np.zeros((entries, *self.shape))

    def answered(self, values: FloatArray, settled: Settled) -> FloatArray:
        """Return the values after answers of any kind, warm-ups included."""
        return values

    def stepped(self, values: FloatArray, rows: IntArray, weights: FloatArray) -> FloatArray:
        """Return the values after a step; `weights` are of the clients that finished, scaled to sum 1."""
        return values


class Accumulated:
    """The values of all accumulators of a scheme."""

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
        """Update every accumulator with answers."""
        for each in self._all:
            self.values[each.name] = each.answered(self.values[each.name], settled)

    def stepped(self, rows: IntArray, weights: FloatArray) -> None:
        """Update every accumulator with the weights of a step."""
        for each in self._all:
            self.values[each.name] = each.stepped(self.values[each.name], rows, weights)

    def load(self, saved: dict[str, FloatArray], clients: int) -> None:
        """Restore saved values; raise InputError if they do not fit."""
        for each in self._all:
            values = saved.get(each.name)
            if values is None or values.shape[1:] != each.shape or (each.per_client and len(values) != clients):
                found = "nothing" if values is None else f"shape {values.shape}"
                raise InputError(f"the saved ledger should hold {each.name!r} for {clients} clients, not {found}")
            self.values[each.name] = np.array(values, dtype=np.float64)
