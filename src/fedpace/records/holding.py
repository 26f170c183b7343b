"""From when on a target is held, rather than met once by luck.

A metric that goes up and down crosses a target long before it stays there, and a scheme that jumps about crosses it
soonest. So a target counts from the first evaluation at a time t at which the metric meets it and at which the mean
over the instants t, t + every, ..., t + (hold - 1) every meets it too. At an instant the model counts that is current
then. Instants are seconds of the clock, not rounds: a scheme with short rounds is judged over as long a time as one
with long rounds.

Not every round need be evaluated: the metric of one that was not is that of the last evaluation before it. With
hold = 1 a target counts from where it is first met.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from typing import Literal

Direction = Literal["up", "down"]


class Holding:
    """Watches the metric of a run round by round.

    Args:
        target: metric to reach; None = there is none.
        direction: whether a better metric is `up` or `down`.
        hold: instants over which the mean must meet the target.
        every: seconds from one instant to the next.
    """

    def __init__(self, target: float | None, direction: Direction, *, hold: int, every: float) -> None:
        self.target = target
        self.direction = direction
        self.hold = hold
        self.every = every
        self.crossed: int | None = None
        """Position of the first round whose metric meets the target."""
        self.held: int | None = None
        """Position of the round from which on it is held, once that is known."""
        self._clocks: list[float] = []
        self._evaluated: list[bool] = []
        self._current: list[float] = []
        """The metric as it was last evaluated, round by round; NaN before the first evaluation."""
        self._next = 0
        """The first round that may turn out to be the one."""

    def add(self, clock: float, metric: float | None) -> None:
        """Take in a round that ended at `clock`; None = it was not evaluated."""
        before = self._current[-1] if self._current else math.nan
        self._clocks.append(clock)
        self._evaluated.append(metric is not None)
        self._current.append(before if metric is None else metric)
        if self.target is None:
            return
        if self.crossed is None and meets(metric, self.target, self.direction):
            self.crossed = len(self._clocks) - 1
        self._decide()

    @property
    def earliest(self) -> float:
        """The earliest time that may still turn out to be the one from which on the target is held."""
        return self._clocks[min(self._next, len(self._clocks) - 1)]

    def undecided(self, last: int) -> bool:
        """Whether one of the rounds up to position `last` may still turn out to be the one."""
        return self.target is not None and self.held is None and self._next < min(last + 1, len(self._clocks))

    def _decide(self) -> None:
        """Judge every round whose instants have all passed. They pass in the order of the rounds."""
        while self.held is None and self._next < len(self._clocks):
            position = self._next
            if self._evaluated[position] and meets(self._current[position], self.target, self.direction):
                if self._clocks[-1] < self._instant(position, self.hold - 1):
                    return
                if self._holds(position):
                    self.held = position
                    return
            self._next += 1

    def _holds(self, position: int) -> bool:
        assert self.target is not None
        # Summed as differences, so that a metric that equals the target meets it however the sum is rounded.
        beyond = math.fsum(self._at(position, number) - self.target for number in range(self.hold))
        return beyond >= 0 if self.direction == "up" else beyond <= 0

    def _at(self, position: int, number: int) -> float:
        """Return the metric at an instant. Of rounds that end at the instant itself, the first counts."""
        instant = self._instant(position, number)
        if instant <= self._clocks[position]:
            return self._current[position]
        later = bisect_left(self._clocks, instant, lo=position)
        return self._current[later if self._clocks[later] == instant else later - 1]

    def _instant(self, position: int, number: int) -> float:
        return self._clocks[position] + number * self.every


def held_from(
    rounds: Iterable[tuple[float, float | None]],
    target: float | None,
    direction: Direction,
    *,
    hold: int,
    every: float,
) -> tuple[int | None, int | None]:
    """Return the positions of the first round that meets the target, and of the one from which on it is held.

    Args:
        rounds: clock and metric of each, in their order; a metric of None was not evaluated.
        target: metric to reach.
        direction: whether a better metric is `up` or `down`.
        hold: instants over which the mean must meet the target.
        every: seconds from one instant to the next.
    """
    watched = Holding(target, direction, hold=hold, every=every)
    for clock, metric in rounds:
        watched.add(clock, metric)
    return watched.crossed, watched.held


def meets(metric: float | None, target: float | None, direction: Direction) -> bool:
    """Whether a metric meets a target, where there are both."""
    if metric is None or target is None:
        return False
    return metric >= target if direction == "up" else metric <= target
