"""`locked` locks a file, so that only one process at a time can write it."""

from __future__ import annotations

import fcntl
import time

PATIENCE = 2.0
"""Seconds to wait for a lock, because the workers of a killed process take a moment to end."""


def locked(file: int) -> bool:
    """Lock an open file until it is closed or this process ends; return False if another process holds the lock."""
    patience = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() > patience:
                return False
        time.sleep(0.05)
