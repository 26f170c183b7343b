"""When a run is evaluated, and when it ends: when its target is held, at a number of rounds, or at a virtual time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from fedpace._base.checks import above, at_least, finite, one_of
from fedpace.records.holding import Direction, Holding, Looks
from fedpace.records.round import Round

__all__ = ["Direction", "Ending", "Stop", "until"]


@dataclass(frozen=True)
class Stop:
    """Limits of a run.

    Args:
        target: metric to reach (accuracy from below, loss from above); None = run to a limit.
        max_rounds: rounds at the most, apart from those that it takes to know whether a target that was met by then is
            held. Of schemes without rounds these are steps, which are much shorter.
        max_seconds: virtual seconds at the most; the round in which it passes is the last.
        evaluate_every: rounds from one evaluation on the test data to the next. The target can only be met in a round
            that is evaluated: the time to target is never earlier. Round 0 is, and the one that a limit makes the last.
        hold: the target counts from when the mean over so many instants meets it (`fedpace.records.holding`), and the
            run goes on until that is known; 1 = it counts, and the run ends, as soon as it is met once.
        hold_every: seconds from one instant to the next; None = the median of the clients' expected delays, which is
            the same for all schemes under one seed.
        looks: `rounds`: the target may count from every evaluation. `grid`: from the evaluations that are current at
            instants `hold_every` apart, counted from 0, so that a scheme that steps often is not looked at more often.
    """

    target: float | None = None
    max_rounds: int = 200
    max_seconds: float = math.inf
    evaluate_every: int = 1
    hold: int = 10
    hold_every: float | None = None
    looks: Looks = "rounds"

    def __post_init__(self) -> None:
        """Refuse options that make no sense."""
        at_least(self.max_rounds, 1, "max_rounds of stop")
        above(self.max_seconds, 0, "max_seconds of stop")
        at_least(self.evaluate_every, 1, "evaluate_every of stop")
        at_least(self.hold, 1, "hold of stop")
        if self.hold_every is not None:
            above(self.hold_every, 0, "hold_every of stop")
            finite(self.hold_every, "hold_every of stop")
        one_of(self.looks, get_args(Looks), "looks of stop")
        if self.target is not None:
            finite(self.target, "target of stop")

    def spacing(self, delays: Sequence[float]) -> float:
        """Return the seconds from one instant to the next among clients of these expected delays."""
        return float(np.median(delays)) if self.hold_every is None else self.hold_every

    def evaluates(self, number: int, clock: float) -> bool:
        """Whether the round of that number, which ends at `clock`, is evaluated."""
        return number % self.evaluate_every == 0 or number == self.max_rounds or clock >= self.max_seconds

    def progress(self, current: Round) -> float:
        """Return how much of the budget is used, in [0, 1]."""
        return min(1.0, max(current.number / self.max_rounds, current.clock / self.max_seconds))


class Ending:
    """Says after which round a run is over. It remembers rounds, so every run needs its own.

    Args:
        stop: the limits.
        direction: whether a better metric is `up` or `down`.
        delays: expected seconds of each client.
    """

    def __init__(self, stop: Stop, direction: Direction, delays: Sequence[float]) -> None:
        self._stop = stop
        self._holding = Holding(stop.target, direction, hold=stop.hold, every=stop.spacing(delays), looks=stop.looks)
        self._last: int | None = None
        """Position of the last round allowed, once it was played."""
        self._played = 0
        self._late = False

    def add(self, current: Round) -> None:
        """Take in the next round, or one that was played before the run was resumed."""
        self._holding.add(current.clock, current.metric)
        if self._last is None and current.number >= self._stop.max_rounds:
            self._last = self._played
        self._played += 1
        self._late = current.clock >= self._stop.max_seconds

    @property
    def held(self) -> bool:
        """Whether the target is known to have been held."""
        return self._holding.held is not None

    @property
    def over(self) -> bool:
        """Whether the round that was added last is the last one."""
        full = self._last is not None and not self._holding.undecided(self._last)
        return self.held or self._late or full


def until(rounds: Iterable[Round], ending: Ending) -> Iterator[Round]:
    """Yield rounds up to and with the one that ends the run; it is added to `ending` before it is yielded."""
    for current in rounds:
        ending.add(current)
        yield current
        if ending.over:
            return
