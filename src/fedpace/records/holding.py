"""`Holding` finds the time from which a run holds its target, rather than meets it once by luck.

A noisy metric crosses a target long before it stays there, and the noisiest scheme crosses it first. So the target is
held from the first evaluation, at a time t, for which the metric meets the target and the mean of the metric over the
instants t, t + every, ..., t + (hold - 1) every meets it too. The metric at an instant is that of the model that is
current then. Instants are seconds of the clock, not rounds, so schemes with short and with long rounds are judged over
the same time.

A round that was not evaluated has the metric of the last evaluation before it. With hold = 1 the target is held from
the time at which it is first met.

A scheme that steps every second has more evaluations than a scheme with rounds, and so more chances to meet the target
by luck. With `looks = "grid"` all schemes have equally many chances: t must be one of the instants 0, every, 2 every,
... The run then holds its target from the first evaluation after the previous instant from which on all evaluations up
to t meet the target. So a scheme is not judged slower because it steps between instants.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Literal

Direction = Literal["up", "down"]
Looks = Literal["rounds", "grid"]
"""When a target may be held from: the end of every round, or instants that are the same for every scheme."""


class Holding:
    """Follows the metric of a run round by round, and finds the round from which the target is held.

    Args:
        target: metric to reach; None = no target.
        direction: whether a better metric is `up` or `down`.
        hold: number of instants over which the mean must meet the target.
        every: seconds between instants.
        looks: where t may lie: at the ends of rounds, or on a grid of instants (if `every` is above 0).
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
        """Position of the first round that meets the target; None before it."""
        self.held: int | None = None
        """Position of the round from which the target is held; None until it is known."""
        self._clocks: list[float] = []
        self._evaluated: list[bool] = []
        self._current: list[float] = []
        """Last evaluated metric at each round; NaN before the first evaluation."""
        self._next = 0
        """The next candidate for t: position of a round, or number of an instant of the grid."""

    def add(self, clock: float, metric: float | None) -> None:
        """Add a round that ended at `clock`; `metric` None = not evaluated."""
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
        """The earliest time from which the target may still turn out to be held."""
        candidate = self._candidate(self._next)
        last = len(self._clocks) - 1
        return self._clocks[self._first(last if candidate is None else candidate[1])]

    def undecided(self, last: int) -> bool:
        """Return whether the target may still turn out to be held from a round up to position `last`."""
        if self.target is None or self.held is not None:
            return False
        candidate = self._candidate(self._next)
        if candidate is not None:
            return self._first(candidate[1]) <= last
        now = len(self._clocks) - 1  # on the grid, this round's model may be current at the next instant
        return self._grid and now >= 0 and self._good(now) and self._first(now) <= last

    def _first(self, position: int) -> int:
        """Return the first round from which the target may be held, if round `position` is current at the next t."""
        if not self._grid:
            return position
        return min(position, bisect_right(self._clocks, (self._next - 1) * self.every))

    def _candidate(self, number: int) -> tuple[float, int] | None:
        """Return candidate t and the round that is current then; None if the run has not reached it."""
        if not self._grid:
            return (self._clocks[number], number) if number < len(self._clocks) else None
        instant = number * self.every
        return (instant, self._current_at(instant, 0)) if self._clocks and instant <= self._clocks[-1] else None

    def _decide(self) -> None:
        """Decide all candidates for t, in order, for which all instants have passed."""
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
        """Return the first evaluation after the previous instant from which all up to `position` meet the target."""
        while not self._evaluated[position]:  # go back to the evaluation that this round's metric comes from
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
        # Sum the differences, so that rounding cannot fail a metric that equals the target.
        beyond = math.fsum(self._at(start, position, number) - self.target for number in range(self.hold))
        return beyond >= 0 if self.direction == "up" else beyond <= 0

    def _at(self, start: float, position: int, number: int) -> float:
        """Return the metric at instant `number` after `start`; round `position` is current at `start`."""
        return self._current[self._current_at(start + number * self.every, position)]

    def _current_at(self, instant: float, low: int) -> int:
        """Return the round that is current at an instant; if several end at this instant, the first of them."""
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
    """Return the position of the first round that meets the target, and of the round from which it is held.

    Args:
        rounds: clock and metric of each round, in order; metric None = not evaluated.
        target: metric to reach.
        direction: whether a better metric is `up` or `down`.
        hold: number of instants over which the mean must meet the target.
        every: seconds between instants.
        looks: when the target may be held from, see `Holding`.
    """
    watched = Holding(target, direction, hold=hold, every=every, looks=looks)
    for clock, metric in rounds:
        watched.add(clock, metric)
    return watched.crossed, watched.held


def meets(metric: float | None, target: float | None, direction: Direction) -> bool:
    """Return whether a metric meets a target; False if either is None."""
    if metric is None or target is None:
        return False
    return metric >= target if direction == "up" else metric <= target
