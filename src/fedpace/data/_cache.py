"""The cache folder of decoded arrays, shared by processes; an entry is either complete or absent."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from fedpace._base.errors import InputError, MissingExtraError

CACHE_VARIABLE = "FEDPACE_CACHE"


def root() -> Path:
    """Return the cache folder: $FEDPACE_CACHE, or `fedpace` in the user's cache folder."""
    if given := os.environ.get(CACHE_VARIABLE):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedpace"


def entry(key: str, make: Callable[[Path], None]) -> Path:
    """Return the folder of entry `key`; if it does not exist, `make` fills it.

    Other processes wait meanwhile. If `make` fails or is killed, no entry is left behind.
    """
    place = root()
    done = place / key
    # An entry is created by one rename, so an existing entry needs no lock.
    if done.is_dir():
        return done
    try:
        from filelock import FileLock
    except ModuleNotFoundError as cause:
        raise MissingExtraError("the cache of decoded data", "data", "filelock") from cause
    try:
        place.mkdir(parents=True, exist_ok=True)
        lock = FileLock(place / f"{key}.lock")
        lock.acquire()
    except OSError as cause:
        raise InputError(
            f"the cache folder {place} cannot be written ({cause}): set {CACHE_VARIABLE} to one that can"
        ) from cause
    try:
        if not done.is_dir():
            _make(place / f"{key}.part", done, make)
    finally:
        lock.release()
    return done


def _make(part: Path, done: Path, make: Callable[[Path], None]) -> None:
    # This process holds the lock, so an existing part was left by a killed process.
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        make(part)
        part.replace(done)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
