"""One thread for every task, in every engine.

Sums that several threads share come out differently in their last bits: a record would depend on the machine's number
of cores. Cores are used by working on several clients at a time instead, which is faster too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fedpace.sim.engines.surroundings import ONE_THREAD


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch, where it is loaded, use one thread within, and as many as before afterwards."""
    torch = sys.modules.get("torch")
    before = 1 if torch is None else torch.get_num_threads()
    if torch is None or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_thread_from_now_on() -> None:
    """Let this process have one thread: libraries that are loaded, and those that are when they are first needed."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    os.environ.update(ONE_THREAD)
    threadpool_limits(limits=1)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
