"""One thread for every task, in every engine.

Sums that several threads share come out differently in their last bits: a record would depend on the machine's number
of cores. Cores are used by working on several clients at a time instead, which is faster too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread within, and as many as before afterwards."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
