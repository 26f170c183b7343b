"""A folder of decoded arrays that processes share: an entry is wholly there or not there at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from fedpace._base.errors import InputError, MissingExtraError

CACHE_VARIABLE = "FEDPACE_CACHE"


def root() -> Path:
    """Return the folder of the cache: $FEDPACE_CACHE, or fedpace below the user's cache folder."""
    if given := os.environ.get(CACHE_VARIABLE):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedpace"


def entry(key: str, make: Callable[[Path], None]) -> Path:
    """Return the folder `key`, which `make` fills when no process has done so before.

    Whoever comes while another is at it waits. A `make` that fails or is killed leaves nothing that would be taken for
    an entry.
    """
    place = root()
    done = place / key
    # An entry appears by one rename, so one that is there needs no lock.
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
    # With the lock held, a part that is there is what a killed process left.
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        make(part)
        part.replace(done)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
