"""What trust remembers of clients that have left, so that leaving and joining again resets nothing.

- A client that joins again under its id gets back its bucket of weight and the evidence of a validation set.
- A client with a new id takes over the fullest bucket that a departed client left, if no newcomer has taken it before.
  So a fleet of constant size gains no weight if its clients change their names. Evidence is not passed on: an honest
  newcomer must not rest for what another client did.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from fedpace._base.errors import InputError
from fedpace.trust.limits import MAX_DEPARTED


class Record(NamedTuple):
    """The part of a client's row that outlives its departure; the names are those of `Trust.columns`."""

    weight_used: float = 0.0
    weight_step: float = 0.0
    refusals: float = 0.0
    rest_until: float = 0.0


class Departed:
    """The records of clients that have left, at most `MAX_DEPARTED`; the oldest are forgotten first."""

    def __init__(self) -> None:
        self.records: dict[Hashable, Record] = {}
        self.inherited: set[Hashable] = set()
        """Departed clients with a bucket that a newcomer has taken over."""

    def leave(self, client: Hashable, record: Record) -> None:
        """Remember a client that leaves, unless there is nothing to remember."""
        if not (record.weight_used or record.refusals or record.rest_until):
            return
        self.records[client] = record
        if len(self.records) > MAX_DEPARTED:
            oldest = next(iter(self.records))
            del self.records[oldest]
            self.inherited.discard(oldest)

    def join(self, clients: Sequence[Hashable], drain: float) -> dict[int, Record]:
        """Return place in `clients` -> what a client that joins starts with; missing = an empty record.

        Args:
            clients: ids of the clients that join.
            drain: how much a bucket of average share drains per step, to find the fullest ones.
        """
        found: dict[int, Record] = {}
        for place, client in enumerate(clients):
            if client in self.records:
                found[place] = self.records.pop(client)
                self.inherited.discard(client)
        vacant = [client for client in self.records if client not in self.inherited]
        vacant.sort(key=lambda client: self.records[client].weight_used + drain * self.records[client].weight_step)
        for place, _ in enumerate(clients):
            if place not in found and vacant:
                before = vacant.pop()
                self.inherited.add(before)
                found[place] = Record(self.records[before].weight_used, self.records[before].weight_step)
        return found

    def saved(self) -> list[tuple[Hashable, list[float], bool]]:
        """Return the content for saving: id, numbers, and whether a newcomer has taken over the bucket."""
        return [(client, list(record), client in self.inherited) for client, record in self.records.items()]

    def load(self, saved: Sequence[tuple[Hashable, Any, Any]]) -> None:
        """Restore the result of `saved`; raise InputError if it is damaged."""
        records: dict[Hashable, Record] = {}
        for client, numbers, _ in saved:
            values = [float(number) for number in numbers]
            if len(values) != len(Record._fields) or not all(0 <= value < math.inf for value in values):
                raise InputError(f"what was saved of the departed client {client!r} is damaged: start anew")
            records[client] = Record(*values)
        self.records, self.inherited = records, {client for client, _, taken in saved if taken}
