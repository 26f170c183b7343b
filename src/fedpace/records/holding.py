"""From when on a target is held, rather than met once by luck.

A metric that goes up and down crosses a target long before it stays there, and a scheme that jumps about crosses it
soonest. So a target counts from the first evaluation at a time t at which the metric meets it and at which the mean
over the instants t, t + every, ..., t + (hold - 1) every meets it too. At an instant the model counts that is current
then. Instants are seconds of the clock, not rounds: a scheme with short rounds is judged over as long a time as one
with long rounds.

Not every round need be evaluated: the metric of one that was not is that of the last evaluation before it. With
hold = 1 a target counts from where it is first met.

A scheme that steps every second has more evaluations that may turn out to be the one than a scheme in rounds, and so
more luck. With `looks = "grid"` all schemes are looked at equally often: at 0, every, 2 every, ... seconds, and t is
one of these instants. What then counts is the first evaluation since the instant before from which on all of them meet
the target, up to this instant: a scheme is not taken for slower than it is because it goes on stepping.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Literal

Direction = Literal["up", "down"]
Looks = Literal["rounds", "grid"]
"""From where a target may count: from the end of every round, or from instants that are the same for every scheme."""


class Holding:
    """Watches the metric of a run round by round.

    Args:
        target: metric to reach; None = there is none.
        direction: whether a better metric is `up` or `down`.
        hold: instants over which the mean must meet the target.
        every: seconds from one instant to the next.
        looks: where t may lie: at the ends of rounds, or on a grid of instants, where they are apart at all.
    """

    def __init__(
        self, target: float | None, direction: Direction, *, hold: int, every: float, looks: Looks = "rounds"
    ) -> None:
        self._grid = looks == "grid" and every > 0
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
        """The first round, or the first instant of the grid, that may turn out to be the one."""

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
        candidate = self._candidate(self._next)
        last = len(self._clocks) - 1
        return self._clocks[self._first(last if candidate is None else candidate[1])]

    def undecided(self, last: int) -> bool:
        """Whether one of the rounds up to position `last` may still turn out to be the one."""
        if self.target is None or self.held is not None:
            return False
        candidate = self._candidate(self._next)
        if candidate is not None:
            return self._first(candidate[1]) <= last
        now = len(self._clocks) - 1  # on the grid, its model may be current at the next instant
        return self._grid and now >= 0 and self._good(now) and self._first(now) <= last

    def _first(self, position: int) -> int:
        """Return the first round that may count where this one is current at the next candidate."""
        if not self._grid:
            return position
        return min(position, bisect_right(self._clocks, (self._next - 1) * self.every))

    def _candidate(self, number: int) -> tuple[float, int] | None:
        """Return the time that may be the one, and the round that counts then; None = it is not known yet."""
        if not self._grid:
            return (self._clocks[number], number) if number < len(self._clocks) else None
        instant = number * self.every
        return (instant, self._current_at(instant, 0)) if self._clocks and instant <= self._clocks[-1] else None

    def _decide(self) -> None:
        """Judge every candidate whose instants have all passed. They pass in the order of the candidates."""
        while self.held is None and (candidate := self._candidate(self._next)) is not None:
            start, position = candidate
            looked = self._clocks[position] <= start if self._grid else self._evaluated[position]
            if looked and self._good(position):
                if self._clocks[-1] < start + (self.hold - 1) * self.every:
                    return
                if self._holds(start, position):
                    self.held = self._since(position) if self._grid else position
                    return
            self._next += 1

    def _since(self, position: int) -> int:
        """Return the first evaluation since the instant before from which on the target was met up to this round."""
        while not self._evaluated[position]:  # the evaluation that stands for this round
            position -= 1
        found = position
        while position > self._first(position) and self._good(position - 1):
            position -= 1
            found = position if self._evaluated[position] else found
        return found

    def _good(self, position: int) -> bool:
        return meets(self._current[position], self.target, self.direction)

    def _holds(self, start: float, position: int) -> bool:
        assert self.target is not None
        # Summed as differences, so that a metric that equals the target meets it however the sum is rounded.
        beyond = math.fsum(self._at(start, position, number) - self.target for number in range(self.hold))
        return beyond >= 0 if self.direction == "up" else beyond <= 0

    def _at(self, start: float, position: int, number: int) -> float:
        """Return the metric at an instant, of which the first is that of `position`."""
        instant = start + number * self.every
        return self._current[position if instant <= start else self._current_at(instant, position)]

    def _current_at(self, instant: float, low: int) -> int:
        """Return the round that is current at an instant; of rounds that end at the instant itself, the first."""
        later = bisect_left(self._clocks, instant, lo=low)
        return later if later < len(self._clocks) and self._clocks[later] == instant else max(later - 1, 0)


def held_from(
    rounds: Iterable[tuple[float, float | None]],
    target: float | None,
    direction: Direction,
    *,
    hold: int,
    every: float,
    looks: Looks = "rounds",
) -> tuple[int | None, int | None]:
    """Return the positions of the first round that meets the target, and of the one from which on it is held.

    Args:
        rounds: clock and metric of each, in their order; a metric of None was not evaluated.
        target: metric to reach.
        direction: whether a better metric is `up` or `down`.
        hold: instants over which the mean must meet the target.
        every: seconds from one instant to the next.
        looks: where it may be held from.
    """
    watched = Holding(target, direction, hold=hold, every=every, looks=looks)
    for clock, metric in rounds:
        watched.add(clock, metric)
    return watched.crossed, watched.held


def meets(metric: float | None, target: float | None, direction: Direction) -> bool:
    """Whether a metric meets a target, where there are both."""
    if metric is None or target is None:
        return False
    return metric >= target if direction == "up" else metric <= target
