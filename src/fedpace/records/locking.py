"""Files that one process at a time may have."""

from __future__ import annotations

import fcntl
import time

PATIENCE = 2.0
"""Seconds that the processes of one that was killed may take to end."""


def locked(file: int) -> bool:
    """Lock an open file until it is closed or this process ends; return False where another process has it."""
    patience = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() > patience:
                return False
        time.sleep(0.05)
