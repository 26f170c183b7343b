"""Long vectors in parts: no temporary copy is longer, a part fits into a core's cache, and threads share them.

Vectors of up to `LARGE` values are one part. Results are the same for any number of threads, because they come back in
the order of the parts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

from numpy.typing import NDArray

T = TypeVar("T")

LARGE = 2**18
"""Most values of a vector that is handled in one part."""
PART = 2**15
"""Values per part of longer vectors; a multiple of the block of `fedpace.numerics.quantised`."""
PIECE = 2**13
"""Values per inner product. BLAS computes one of so few values in one thread: of more, its threads and those of
`in_parts` would wait for each other."""
RUN = 32
"""Parts that a thread takes at a time."""


def parts(length: int) -> list[slice]:
    """Return the parts of a vector."""
    size = length if length <= LARGE else PART
    return [slice(start, min(start + size, length)) for start in range(0, length, max(1, size))]


def in_parts(compute: Callable[[slice], T], length: int) -> list[T]:
    """Return what `compute` returns for each part, in order; threads compute the parts of long vectors."""
    every = parts(length)
    if len(every) == 1 or threads() == 1:
        return [compute(part) for part in every]
    runs = [every[start : start + RUN] for start in range(0, len(every), RUN)]
    found = _pool(os.getpid()).map(lambda run: [compute(part) for part in run], runs)
    return [each for run in found for each in run]


def inner(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Return the inner product of parts of long vectors, in pieces."""
    starts = range(0, len(one), PIECE)
    return sum(float(one[start : start + PIECE] @ other[start : start + PIECE]) for start in starts)


def threads() -> int:
    """Return the number of threads: the cores that this process may use, four at the most."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(4, cores)


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """Return the threads of this process; a forked process has none of its parent's."""
    return ThreadPoolExecutor(threads(), thread_name_prefix="fedpace-parts")
