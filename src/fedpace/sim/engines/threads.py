"""Limits computations to one thread, as every task in every engine needs.

A sum computed by several threads differs in its last bits, so records would depend on the number of cores. Engines use
the cores by training several clients in parallel instead, which is also faster.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""Limits numerical libraries to one thread, because threads of parallel processes slow each other down."""


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables inside the `with` block, and restore the old values after it."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


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


def limit_to_one_thread() -> None:
    """Limit this process to one thread for good, in libraries already loaded and in those loaded later."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    os.environ.update(ONE_THREAD)
    threadpool_limits(limits=1)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
