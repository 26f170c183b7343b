"""Answers on their way, by the virtual time at which they come."""

from __future__ import annotations

from collections.abc import Container, Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple


class Event(NamedTuple):
    """A task that ends: answered, or lost where the client crashed."""

    when: float
    task: int
    seconds: float
    """That the client took."""
    crashed: bool = False


class Events:
    """A queue of events. Those of tasks that were given up are passed over."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._heap = list(events)
        heapify(self._heap)

    def add(self, events: Iterable[Event]) -> None:
        """Let tasks end later."""
        for event in events:
            heappush(self._heap, event)

    def next(self, wanted: Container[int], until: float) -> Event | None:
        """Return the first event of a task that is still wanted, if it comes by then; once."""
        while self._heap and (self._heap[0].when <= until or self._heap[0].task not in wanted):
            event = heappop(self._heap)
            if event.task in wanted:
                return event
        return None

    def first(self, wanted: Container[int]) -> float | None:
        """Return when the next event of a task that is still wanted comes; None where there is none."""
        while self._heap and self._heap[0].task not in wanted:
            heappop(self._heap)
        return self._heap[0].when if self._heap else None

    def all(self, wanted: Container[int]) -> list[Event]:
        """Return those that are still wanted, in order."""
        return sorted(event for event in self._heap if event.task in wanted)
