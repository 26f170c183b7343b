"""One server per folder: two would overwrite each other's rounds."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

from fedpace._base.errors import InputError
from fedpace.records.locking import locked

LOCK = "lock"


class FolderLock:
    """A folder that is this server's, until it is released or the process ends, however that comes about."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = -1
        self.acquire()

    def acquire(self) -> None:
        """Take the folder, unless it is held already; where another server has it, say who that is."""
        if self._file >= 0:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as cause:
            raise InputError(f"cannot keep a server's state in {self._folder}: {cause}; give another folder") from cause
        if not locked(file):
            holder = os.pread(file, 200, 0).decode(errors="replace").strip() or "another server"
            os.close(file)
            raise InputError(
                f"{self._folder} is in use by {holder}: let that one end first, or give this one another folder"
            )
        now = datetime.now(UTC).isoformat(timespec="seconds")
        os.ftruncate(file, 0)
        os.pwrite(file, f"process {os.getpid()} on {platform.node()}, since {now}\n".encode(), 0)
        self._file = file

    def release(self) -> None:
        """Let others have the folder."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        """Release what nobody can use any more."""
        self.release()
