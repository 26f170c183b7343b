"""The errors of fedpace. All have one base class, so a host can catch them with one clause.

`terminable` turns SIGTERM into `Terminated`, so that `kill`, a container or a batch system ends a run as Ctrl-C does.
"""

from __future__ import annotations

import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class FedpaceError(Exception):
    """Base class of all errors that fedpace raises on purpose.

    The text says what was expected, what came, and what to do.
    """


class InputError(FedpaceError, ValueError):
    """An input is invalid: a delay, a moment, a weight, an option or a file."""


class OrderError(FedpaceError, RuntimeError):
    """A method was called in the wrong order, such as `observe` without a selection."""


class InfeasibleError(FedpaceError, RuntimeError):
    """A selection problem has no feasible solution, and no fallback was requested."""


class StorageError(FedpaceError, OSError):
    """A file could not be written: the disk or quota is full, or a mount was lost."""


class FedpaceWarning(UserWarning):
    """Something works, but not as well as it could; the text says what is missing and what to do."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra into the environment of this process, not of another `pip`."""
    python = Path(sys.executable)
    found = shutil.which("pip")
    if found is not None and Path(found).parent == python.parent:
        return f"pip install 'fedpace[{extra}]'"
    if python.is_relative_to(Path.cwd()):
        python = python.relative_to(Path.cwd())
    return f"{shlex.quote(str(python))} -m pip install 'fedpace[{extra}]'"


class MissingExtraError(FedpaceError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, feature: str, extra: str, missing: str, otherwise: str = "") -> None:
        what = f"{feature} needs {missing!r}, which is not installed: {install_command(extra)}"
        super().__init__(f"{what}; {otherwise}" if otherwise else what)


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
