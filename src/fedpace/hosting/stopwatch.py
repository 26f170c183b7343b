"""Where a server's time goes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Spent:
    """What one kind of work took."""

    times: int = 0
    seconds: float = 0.0
    """By the clock: where a machine is busy, waiting for a core is in them."""
    work: float = 0.0
    """Seconds that its thread had a core."""
    longest: float = 0.0
    """The most of the seconds at one time."""
    most_work: float = 0.0
    """The most of the work at one time, which may be another."""


class Stopwatch:
    """Seconds by what they were spent on."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, Spent] = defaultdict(Spent)

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        """Count what happens inside."""
        began, worked = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            seconds, work = time.perf_counter() - began, time.thread_time() - worked
            spent = self.spent[what]
            spent.times += 1
            spent.seconds += seconds
            spent.work += work
            spent.longest = max(spent.longest, seconds)
            spent.most_work = max(spent.most_work, work)

    def __str__(self) -> str:
        """The whole table in one line, the longest first; in brackets what of it was work, and the most at one time."""
        parts = sorted(self.spent.items(), key=lambda part: -part[1].seconds)
        return ", ".join(
            f"{what} {s.seconds:.2f} s in {s.times} ({s.work:.2f} s of work, {1000 * s.most_work:.1f} ms at the most)"
            for what, s in parts
        )
