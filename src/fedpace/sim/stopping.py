"""Limits of a run (`Stop`): its target, its most rounds or virtual seconds, and the rounds that are evaluated.

`StopRule` decides after which round a run is over, and `run_until` cuts a stream of rounds there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fedpace._base.options import FINITE, Above, AtLeast, Options
from fedpace.records.holding import Direction, Holding, Looks
from fedpace.records.run import Round

__all__ = ["Direction", "Stop", "StopRule", "run_until"]


@dataclass(frozen=True)
class Stop(Options):
    """Limits of a run.

    Args:
        target: metric to reach (accuracy from below, loss from above); None = run until a limit.
        max_rounds: most rounds. If the target was met by then, the run continues until it is known whether it is held.
            For asynchronous schemes this counts steps, which are much shorter than rounds.
        max_seconds: most virtual seconds; the round in which they pass is the last.
        evaluate_every: rounds between evaluations on the test data. The target can be met only in a round that is
            evaluated. Round 0 and the last round that a limit allows are always evaluated.
        hold: the target is held if the mean over this many instants meets it (`fedpace.records.holding`), and the run
            continues until this is known; 1 = the run ends as soon as the target is met once.
        hold_every: seconds between instants; None = the median of the clients' expected delays, which is the same for
            all schemes under one seed.
        looks: when the target may be met. `rounds`: at every evaluation. `grid`: only at instants `hold_every` apart,
            from 0 on, with the evaluation current at that instant, so that schemes that step often have no advantage.
    """

    options_of: ClassVar[str] = "stop"

    target: Annotated[float, FINITE] | None = None
    max_rounds: Annotated[int, AtLeast(1)] = 200
    max_seconds: Annotated[float, Above(0)] = math.inf
    evaluate_every: Annotated[int, AtLeast(1)] = 1
    hold: Annotated[int, AtLeast(1)] = 10
    hold_every: Annotated[float, Above(0), FINITE] | None = None
    looks: Looks = "rounds"

    def spacing(self, delays: Sequence[float]) -> float:
        """Return the seconds between instants, for clients with these expected delays."""
        return float(np.median(delays)) if self.hold_every is None else self.hold_every

    def evaluates(self, number: int, clock: float) -> bool:
        """Return whether round `number`, which ends at `clock`, is evaluated."""
        return number % self.evaluate_every == 0 or number == self.max_rounds or clock >= self.max_seconds

    def progress(self, current: Round) -> float:
        """Return the used share of the rounds or seconds, whichever is larger, in [0, 1]."""
        return min(1.0, max(current.number / self.max_rounds, current.clock / self.max_seconds))


class StopRule:
    """Decides after which round a run is over. It keeps state, so every run needs its own.

    Args:
        stop: the limits.
        direction: whether a better metric is `up` or `down`.
        delays: expected delay of each client in seconds.
    """

    def __init__(self, stop: Stop, direction: Direction, delays: Sequence[float]) -> None:
        self._stop = stop
        self._holding = Holding(stop.target, direction, hold=stop.hold, every=stop.spacing(delays), looks=stop.looks)
        self._last: int | None = None
        """Position of the round that reached `max_rounds`; None before it."""
        self._played = 0
        self._late = False

    def add(self, current: Round) -> None:
        """Add the next round. When a run is resumed, first add its earlier rounds."""
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
        """Whether the run ends with the round that was added last."""
        full = self._last is not None and not self._holding.undecided(self._last)
        return self.held or self._late or full


def run_until(rounds: Iterable[Round], stop_rule: StopRule) -> Iterator[Round]:
    """Yield rounds up to and including the one that ends the run; add each to `stop_rule` before it is yielded."""
    for current in rounds:
        stop_rule.add(current)
        yield current
        if stop_rule.over:
            return
