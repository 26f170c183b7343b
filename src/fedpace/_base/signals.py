"""SIGTERM handled like Ctrl-C, so that `kill`, a container or a batch system ends a run cleanly."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived; code that handles Ctrl-C handles this too."""


@contextmanager
def terminable() -> Iterator[None]:
    """Context manager: inside it, SIGTERM raises `Terminated`, so that files are closed and the status is recorded.

    It does nothing outside of the main thread, or if the program already handles SIGTERM.
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
