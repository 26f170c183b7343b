"""A stopwatch that adds up a server's time by kind of work."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Spent:
    """Time spent on one kind of work."""

    times: int = 0
    seconds: float = 0.0
    """Wall-clock seconds, including the wait for a free core."""
    work: float = 0.0
    """CPU seconds of the thread."""
    longest: float = 0.0
    """Largest wall-clock seconds of one call."""
    most_work: float = 0.0
    """Largest CPU seconds of one call."""


class Stopwatch:
    """Adds up seconds by kind of work: `with watch("saving"): ...`."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, Spent] = defaultdict(Spent)

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        """Context manager: add the time spent inside to the kind of work `what`."""
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
        """All kinds of work in one line, the longest first; in brackets, total and largest CPU time of one call."""
        parts = sorted(self.spent.items(), key=lambda part: -part[1].seconds)
        return ", ".join(
            f"{what} {s.seconds:.2f} s in {s.times} ({s.work:.2f} s of work, {1000 * s.most_work:.1f} ms at the most)"
            for what, s in parts
        )
