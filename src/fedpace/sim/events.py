"""Answers on their way, by the virtual time at which they come."""

from __future__ import annotations

from collections.abc import Container, Iterable
from heapq import heapify, heappop
from typing import NamedTuple

import numpy as np

from fedpace.core.tasks import Due
from fedpace.sim.clock import VirtualTime


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
        self._heap.extend(events)
        heapify(self._heap)

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


def endings(due: Due, time: VirtualTime, tick: int, *, in_rounds: bool) -> list[Event]:
    """Return when tasks that start now end: after their clients' delays, in this turn of them.

    Tasks that are no round have turns of each client's own, so that all policies meet the same draws.
    """
    clients = np.fromiter((task.client for task in due.tasks), np.int64, len(due.tasks))
    kind = due.tasks[0].kind
    if kind == "train" and not in_rounds:
        turns = [task.job + 1 for task in due.tasks]
        seconds = np.array([time.drawn(turn)[client] for turn, client in zip(turns, clients, strict=True)])
        crashed = [bool(time.availability.crashes(turn)[c]) for turn, c in zip(turns, clients, strict=True)]
    else:
        # Turn 0 of the delays belongs to the warm-up, so that rounds meet the same draws with and without one.
        seconds = time.drawn(tick - 1 if due.warmup else tick)[clients]
        safe = due.warmup or kind == "probe"
        crashed = [False] * clients.size if safe else time.availability.crashes(tick)[clients].tolist()
    counted = time.clock.probe_fraction if kind == "probe" else 1.0
    if due.warmup and not time.clock.charge_warmup:
        counted = 0.0
    when = (time.now + counted * seconds).tolist()
    return list(map(Event, when, [task.id for task in due.tasks], seconds.tolist(), crashed))
