"""Runs work in parallel with one BLAS thread per worker.

Thousands of medium-sized matrix products run fastest with one single-threaded stream per core. On two cores this gives
101 GFLOP/s, compared with 71 if BLAS splits each product and 29 if workers and BLAS threads compete (float32, 100 x 500
x 100; the gap is larger on a busy machine). NumPy has no switch for this, so we call the OpenBLAS that it is linked to.
With another BLAS, nothing is changed and one worker runs.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

_NAMES = ("scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads", "openblas_{}_num_threads64_")
_lock = threading.Lock()
_depth = 0
_before = 1


@cache
def _switch() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """Return OpenBLAS's get and set functions from the library that NumPy has loaded; None if there are none."""
    try:
        from numpy.linalg import _umath_linalg

        library: Any = ctypes.CDLL(_umath_linalg.__file__)
    except (ImportError, OSError):
        return None
    for name in (*_NAMES, "openblas_{}_num_threads"):
        if hasattr(library, name.format("set")) and hasattr(library, name.format("get")):
            return getattr(library, name.format("get")), getattr(library, name.format("set"))
    return None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread while any caller is inside this context."""
    global _depth, _before
    switch = _switch()
    if switch is None:
        yield
        return
    with _lock:
        if _depth == 0:
            _before = switch[0]()
            switch[1](1)
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                switch[1](_before)


def in_parallel(work: Callable[[T], None], parts: list[T]) -> None:
    """Run `work` on every part, using all cores available to this process."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    workers = min(cores, len(parts)) if _switch() is not None else 1
    if workers <= 1:
        with one_blas_thread():
            for part in parts:
                work(part)
        return
    # NumPy's error state is per thread: pass the caller's state on to the workers.
    state = np.geterr()

    def quiet(part: T) -> None:
        with np.errstate(**state):
            work(part)

    with one_blas_thread(), ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(quiet, parts):
            pass
