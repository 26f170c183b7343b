"""A queue of task ends ordered by virtual time, for the simulator and for the clock `reported`."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from fedpace.core.tasks import Task

if TYPE_CHECKING:
    from fedpace.core.coordinator import Coordinator


class Event(NamedTuple):
    """The end of a task: an answer, or a failure if the client crashed."""

    when: float
    task: int
    seconds: float
    """Seconds that the client took."""
    crashed: bool = False
    compute: float = -1.0
    """Part of the seconds that grew with the work; below 0 = unknown."""


class Events:
    """A queue of events; it skips the events of tasks that are no longer in flight."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._heap = list(events)
        heapify(self._heap)
        self.waited: float | None = None
        """Exact duration of the policy's last wait: the seconds of its last answer, or its deadline."""

    def add(self, events: Iterable[Event]) -> None:
        """Add events."""
        for event in events:
            heappush(self._heap, event)

    def come(self, coordinator: Coordinator, now: float) -> Iterator[tuple[Task, Event]]:
        """Yield the events of tasks in flight until `now`; the caller must process each before it takes the next."""
        tasks = coordinator.task_table.tasks
        while self._first(tasks) <= now:
            event = heappop(self._heap)
            task = tasks[event.task]
            if task.kind == "train":
                self.waited = event.seconds
            yield task, event

    def next_instant(self, coordinator: Coordinator) -> float:
        """Return the time of the next event: an answer or the end of the policy's wait; infinity = none."""
        first, wake = self._first(coordinator.task_table.tasks), coordinator.wake_at
        if wake < first and (wait := coordinator.progress.wait) is not None:
            self.waited = min(wait.seconds, coordinator.settings.deadline)
        return min(first, wake)

    def all(self, wanted: Container[int]) -> list[Event]:
        """Return the events of the tasks in `wanted`, in order of time."""
        return sorted(event for event in self._heap if event.task in wanted)

    def _first(self, wanted: Container[int]) -> float:
        """Return the time of the next event of a task in `wanted`, and drop earlier events of other tasks."""
        while self._heap and self._heap[0].task not in wanted:
            heappop(self._heap)
        return self._heap[0].when if self._heap else math.inf
