"""One BLAS thread a worker.

Thousands of middling matrix products run fastest as one single-threaded stream a core: on two cores 101 GFLOP/s,
against 71 when BLAS splits each product, and 29 when workers and BLAS threads fight (float32, 100 x 500 x 100; the gap
widens on a busy machine). NumPy offers no switch for that, so we ask the OpenBLAS it is linked to. Where that is
another BLAS, nothing is changed and one worker runs.
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
    """Find OpenBLAS's get and set among the libraries that NumPy's LAPACK module already loaded."""
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
    """Hold BLAS at one thread while any caller is inside."""
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
    """Run `work` on every part, on all cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    workers = min(cores, len(parts)) if _switch() is not None else 1
    if workers <= 1:
        with one_blas_thread():
            for part in parts:
                work(part)
        return
    # NumPy's error state is per thread (and its default warns): workers must see the caller's.
    state = np.geterr()

    def quiet(part: T) -> None:
        with np.errstate(**state):
            work(part)

    with one_blas_thread(), ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(quiet, parts):
            pass
