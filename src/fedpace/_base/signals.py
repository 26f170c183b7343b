"""SIGTERM as Ctrl-C: what `kill`, a container or a batch system sends ends a run in good order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM came. Whoever treats Ctrl-C well treats this well."""


@contextmanager
def terminable() -> Iterator[None]:
    """Inside, SIGTERM raises `Terminated`, so that files are closed and say how a run ended.

    Where somebody else handles SIGTERM already, that stays; outside of the main thread Python allows no handler.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated("terminated by SIGTERM")
