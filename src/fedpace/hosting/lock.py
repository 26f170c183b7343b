"""The lock of a state folder: two servers in one folder would overwrite each other's rounds."""

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
    """An exclusive lock on a folder, until `release` or the end of the process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = self._place = -1
        self.acquire()

    def acquire(self) -> None:
        """Lock the folder, unless this object holds it already; raise InputError that names the current holder."""
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
        self._place = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)  # keep it open: its inode is not reused
        with keeping(self._folder / LOCK):
            os.ftruncate(file, 0)
            os.pwrite(file, f"process {os.getpid()} on {platform.node()}, since {now}\n".encode(), 0)

    @property
    def moved(self) -> bool:
        """Whether the locked folder was deleted, moved or replaced."""
        return self._file >= 0 and not _same(self._place, self._folder)

    @property
    def removed(self) -> bool:
        """Whether the lock file was deleted or replaced; the folder may then be empty."""
        return self._file >= 0 and not _same(self._file, self._folder / LOCK)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Context manager: lock the folder inside, and release it at the end."""
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        """Release the lock."""
        if self._file >= 0:
            os.close(self._file)
            os.close(self._place)
            self._file = self._place = -1

    def __del__(self) -> None:
        """Release the lock."""
        self.release()


def _same(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat()
    except OSError:
        return False
    held = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)
