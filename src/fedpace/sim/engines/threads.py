"""Context managers that limit computations to one thread, as every task in every engine needs.

A sum computed by several threads differs in its last bits, so records would depend on the number of cores. Engines use
the cores by training several clients in parallel instead, which is also faster.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fedpace.sim.engines.surroundings import ONE_THREAD


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch, if it is loaded, to one thread inside the `with` block."""
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
    """Limit this process to one thread for good, in libraries already loaded and in those loaded later."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    os.environ.update(ONE_THREAD)
    threadpool_limits(limits=1)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
