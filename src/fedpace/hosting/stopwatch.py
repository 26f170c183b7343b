"""Where a server's time goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Real seconds by what they were spent on, the longest time, and how often."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self.most: dict[str, float] = {}
        self.times: dict[str, int] = {}

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        """Count what happens inside."""
        began = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            self.spent[what] = self.spent.get(what, 0.0) + seconds
            self.most[what] = max(self.most.get(what, 0.0), seconds)
            self.times[what] = self.times.get(what, 0) + 1

    def __str__(self) -> str:
        """The whole table in one line, the longest first."""
        parts = sorted(self.spent.items(), key=lambda part: -part[1])
        return ", ".join(f"{what} {took:.2f} s in {self.times[what]}" for what, took in parts)
