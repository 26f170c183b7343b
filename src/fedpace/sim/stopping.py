"""When a run is evaluated, and when it ends: at its target, at a number of rounds, or at a virtual time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from fedpace.core.checks import above, at_least
from fedpace.core.errors import InputError
from fedpace.sim.round import Round

Direction = Literal["up", "down"]


@dataclass(frozen=True)
class Stop:
    """Limits of a run.

    Args:
        target: metric to reach (accuracy from below, loss from above); None = run to a limit.
        max_rounds: rounds at the most.
        max_seconds: virtual seconds at the most; the round in which it passes is the last.
        evaluate_every: rounds from one evaluation on the test data to the next. The target can only be met in a round
            that is evaluated: the time to target is never earlier. Round 0 is, and the one that a limit makes the last.
    """

    target: float | None = None
    max_rounds: int = 200
    max_seconds: float = math.inf
    evaluate_every: int = 1

    def __post_init__(self) -> None:
        """Refuse options that make no sense."""
        at_least(self.max_rounds, 1, "max_rounds of stop")
        above(self.max_seconds, 0, "max_seconds of stop")
        at_least(self.evaluate_every, 1, "evaluate_every of stop")
        if self.target is not None and not math.isfinite(self.target):
            raise InputError(f"target of stop must be finite, but {self.target} came")

    def reached(self, metric: float | None, direction: Direction) -> bool:
        """Whether `metric` meets the target; None, a round that was not evaluated, does not."""
        return meets(metric, self.target, direction)

    def exhausted(self, number: int, clock: float) -> bool:
        """Whether the round of that number, which ends at `clock`, is the last one allowed."""
        return number >= self.max_rounds or clock >= self.max_seconds

    def ends(self, current: Round, direction: Direction) -> bool:
        """Whether `current` is the last round."""
        return self.reached(current.metric, direction) or self.exhausted(current.number, current.clock)

    def evaluates(self, number: int, clock: float) -> bool:
        """Whether the round of that number, which ends at `clock`, is evaluated."""
        return number % self.evaluate_every == 0 or self.exhausted(number, clock)

    def progress(self, current: Round) -> float:
        """Return how much of the budget is used, in [0, 1]."""
        return min(1.0, max(current.number / self.max_rounds, current.clock / self.max_seconds))


def meets(metric: float | None, target: float | None, direction: Direction) -> bool:
    """Whether a metric meets a target, where there are both."""
    if metric is None or target is None:
        return False
    return metric >= target if direction == "up" else metric <= target


def until(rounds: Iterable[Round], stop: Stop, direction: Direction) -> Iterator[Round]:
    """Yield rounds up to and with the one that ends the run."""
    for current in rounds:
        yield current
        if stop.ends(current, direction):
            return
