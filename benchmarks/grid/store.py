"""Rows that outlive a crash: JSON lines, each on disk before the next begins; and the processes that make them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from grid.runs import Row, one_thread

J = TypeVar("J")


class Rows:
    """The rows of one file; of two rows with the same key, the later one counts."""

    def __init__(self, path: Path, key: Callable[[Row], Hashable]) -> None:
        self.path = path
        self._key = key
        self.rows: dict[Hashable, Row] = {}
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            if lines and not lines[-1].endswith("\n"):  # cut off by a crash: the run is done again
                path.write_text("".join(lines[:-1]), encoding="utf-8")
                lines = lines[:-1]
            for line in lines:
                row = json.loads(line)
                self.rows[key(row)] = row

    def __contains__(self, key: Hashable) -> bool:
        """Whether there is a row of this key."""
        return key in self.rows

    def lend(self, row: Row) -> None:
        """Let a row count that is kept elsewhere, unless the file has one of its own."""
        self.rows.setdefault(self._key(row), row)

    def add(self, row: Row) -> None:
        """Keep a row, on disk first."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows[self._key(row)] = row


def spread(work: Callable[[J], Any], jobs: Iterable[J], processes: int) -> Iterator[Any]:
    """Yield the results as they come; an exception in a worker ends everything."""
    jobs = list(jobs)
    if not jobs:
        return
    began = time.monotonic()
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=one_thread) as pool:
        futures = [pool.submit(work, job) for job in jobs]
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                yield future.result()
                passed = time.monotonic() - began
                left = passed / done * (len(jobs) - done)
                print(f"{done}/{len(jobs)} in {passed:.0f} s, about {left:.0f} s left", file=sys.stderr, flush=True)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
