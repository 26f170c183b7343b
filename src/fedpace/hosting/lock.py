"""One server per folder: two would overwrite each other's rounds."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from fedpace._base.errors import InputError
from fedpace._base.files import FULL, keeping, storage_error
from fedpace.records.locking import locked

LOCK = "lock"


class FolderLock:
    """A folder that is this server's, until it is released or the process ends, however that comes about."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = self._place = -1
        self.acquire()

    def acquire(self) -> None:
        """Take the folder, unless it is held already; where another server has it, say who that is."""
        if self._file >= 0:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as cause:
            if cause.errno in FULL:
                raise storage_error(self._folder, cause) from cause
            raise InputError(f"cannot keep a server's state in {self._folder}: {cause}; give another folder") from cause
        if not locked(file):
            holder = os.pread(file, 200, 0).decode(errors="replace").strip() or "another server"
            os.close(file)
            raise InputError(
                f"{self._folder} is in use by {holder}: let that one end first, or give this one another folder"
            )
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._file = file
        self._place = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)  # held, so that its number is not used again
        with keeping(self._folder / LOCK):
            os.ftruncate(file, 0)
            os.pwrite(file, f"process {os.getpid()} on {platform.node()}, since {now}\n".encode(), 0)

    @property
    def moved(self) -> bool:
        """Whether the folder that is held is no longer the one of that name: it was deleted, moved or replaced."""
        return self._file >= 0 and not _same(self._place, self._folder)

    @property
    def removed(self) -> bool:
        """Whether the file that is locked is gone, with all that is in the folder perhaps."""
        return self._file >= 0 and not _same(self._file, self._folder / LOCK)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside, the folder is this server's."""
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        """Let others have the folder."""
        if self._file >= 0:
            os.close(self._file)
            os.close(self._place)
            self._file = self._place = -1

    def __del__(self) -> None:
        """Release what nobody can use any more."""
        self.release()


def _same(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat()
    except OSError:
        return False
    held = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)
