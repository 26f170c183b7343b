"""Answers on their way, by the virtual time at which they come."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from fedpace.core.tasks import Task

if TYPE_CHECKING:
    from fedpace.core.standing import Standing


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
        self.waited: float | None = None
        """How long the policy's tasks had been waited for when they were last heard of, to the last bit."""

    def add(self, events: Iterable[Event]) -> None:
        """Let tasks end later."""
        for event in events:
            heappush(self._heap, event)

    def come(self, standing: Standing, now: float) -> Iterator[tuple[Task, Event]]:
        """Yield what has come by now of tasks in flight; each is to be taken in before the next is asked for."""
        flight = standing.flight.tasks
        while self._first(flight) <= now:
            event = heappop(self._heap)
            task = flight[event.task]
            if task.kind == "train":
                self.waited = event.seconds
            yield task, event

    def next_instant(self, standing: Standing) -> float:
        """Return when something happens next, an answer or the end of the policy's wait; infinity = nothing will."""
        first, wake = self._first(standing.flight.tasks), standing.wake_at
        if wake < first and (wait := standing.at.wait) is not None:
            self.waited = min(wait.seconds, standing.settings.deadline)
        return min(first, wake)

    def all(self, wanted: Container[int]) -> list[Event]:
        """Return those that are still wanted, in order."""
        return sorted(event for event in self._heap if event.task in wanted)

    def _first(self, wanted: Container[int]) -> float:
        """Return when the next event of a task that is still wanted comes."""
        while self._heap and self._heap[0].task not in wanted:
            heappop(self._heap)
        return self._heap[0].when if self._heap else math.inf
