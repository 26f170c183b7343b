"""`RunWriter` writes a run folder round by round; `fedpace.records.run` reads it.

A run may be interrupted and resumed. Rounds that were recorded after the last checkpoint are then computed again, and
must equal the record.

The record names the git commit. A repository's configuration can name programs that even `git status` starts, and users
may start fedpace in repositories of others. So `commit` reads git's files, and calls `git status` only if the
configuration names no program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import platform
import re
import subprocess
import sys
import time
from collections import deque
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any

from fedpace._base.errors import FedpaceError, InputError, StorageError
from fedpace._base.files import FULL, json_bytes, keeping, storage_error, write_atomically
from fedpace.records.run import (
    INFO,
    ROUNDS,
    Round,
    RunInfo,
    check_lines,
    fingerprint,
    line_digest,
    plain,
    read_info,
    round_line,
)

HARMLESS = re.compile(
    r"\[(core|remote|branch|user|merge|pull|push|rebase|init|color|advice|gc|pack|index|extensions|submodule|lfs)\b",
    re.IGNORECASE,
)
"""Sections of git's configuration that name no program, except by keys that match `PROGRAM`."""
PROGRAM = re.compile(
    r"fsmonitor|hookspath|sshcommand|gitproxy|askpass|editor|pager|attributesfile|worktree|command|driver|helper"
    r"|uploadpack|receivepack|program|textconv|external|smudge|clean|process",
    re.IGNORECASE,
)
HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
LARGEST = 2**20
"""Most bytes that are read from one of git's files."""


def commit() -> str | None:
    """Return the commit of the git checkout around the current folder; None outside a checkout.

    A final `+` means uncommitted changes; `?` means that this could not be checked safely.
    """
    try:
        found = _folders(Path.cwd())
        if found is None:
            return None
        own, common = found
        head = _head(own, common)
        return None if head is None else head + _changed(own, common)
    except (OSError, ValueError):
        return None


def _folders(start: Path) -> tuple[Path, Path] | None:
    """Return the git folder of the checkout around `start`, and the git folder that its worktrees share."""
    for place in (start, *start.parents):
        own = place / ".git"
        if own.is_file():
            own = place / _text(own).removeprefix("gitdir:").strip()
        if (own / "HEAD").is_file():
            shared = own / "commondir"
            return own, (own / _text(shared).strip() if shared.is_file() else own)
    return None


def _head(own: Path, common: Path) -> str | None:
    head = _text(own / "HEAD").strip()
    for _ in range(5):
        if HASH.fullmatch(head):
            return head
        name = head.removeprefix("ref:").strip()
        if not re.fullmatch(r"refs/[\w./@+-]+", name) or ".." in name:
            return None
        loose = next((folder / name for folder in (own, common) if (folder / name).is_file()), None)
        head = _text(loose).strip() if loose is not None else _packed(common, name)
    return None


def _packed(common: Path, name: str) -> str:
    packed = common / "packed-refs"
    for line in _text(packed).splitlines() if packed.is_file() else ():
        parts = line.split()
        if len(parts) == 2 and parts[1] == name:
            return parts[0]
    return ""


def _changed(own: Path, common: Path) -> str:
    """Return `+` if there are uncommitted changes, `?` if this cannot be checked safely, else an empty string."""
    for path in (common / "config", own / "config", own / "config.worktree"):
        if path.is_file() and not harmless(_text(path)):
            return "?"
    quiet = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "--no-optional-locks")
    asked = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
    try:
        done = subprocess.run(["git", *quiet, *asked], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return "?"
    return "+" if done.stdout.strip() else ""


def harmless(configuration: str) -> bool:
    """Return whether a repository's configuration names no program that `git status` would start."""
    lines = [line.strip() for line in configuration.splitlines()]
    sections = [line for line in lines if line.startswith("[")]
    keys = [line.split("=")[0] for line in lines if not line.startswith(("[", "#", ";"))]
    inline = [line.split("]", 1)[1].split("=")[0] for line in sections if "]" in line]
    return all(HARMLESS.match(line) for line in sections) and not any(PROGRAM.search(key) for key in keys + inline)


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(LARGEST).decode("utf-8", errors="strict")


class RunWriter:
    """Writes a run round by round. Use it as a context manager; at its end it records how the run ended."""

    def __init__(self, folder: Path, info: RunInfo) -> None:
        try:
            taken = (folder / INFO).exists()
        except OSError as cause:  # a name that is too long
            raise InputError(f"cannot write a run into {folder}: {cause}; give another folder") from cause
        if taken:
            raise InputError(f"{folder} holds a run already: choose another folder, or remove it first")
        self.folder = folder
        self.info = dataclasses.replace(
            info, started=datetime.now(UTC).isoformat(timespec="seconds"), versions=versions(), commit=commit()
        )
        self._began = time.monotonic()
        self._before = 0.0
        self._resumed = False
        self._written = 0
        self._again: deque[bytes] = deque()
        self._created: list[Path] = []
        self._digests: list[str] = []
        self._expected = ""

    @classmethod
    def resume(cls, folder: Path, *, rounds: int, wall_seconds: float = 0.0, digests: str = "") -> RunWriter:
        """Continue the run in `folder`; its first `rounds` rounds are in the checkpoint and are not computed again.

        `digests` is the writer's `digests` at the time of the checkpoint. If one of these rounds was changed since,
        entering the writer raises an error that names its line.
        """
        info = read_info(folder)
        writer = cls.__new__(cls)
        writer.folder = folder
        writer.info = dataclasses.replace(
            info,
            status="running",
            message="",
            rounds=None,
            digest=None,
            sittings=info.sittings + 1,
            versions={name: _both(info.versions.get(name), now) or now for name, now in versions().items()},
            commit=_both(info.commit, commit()),
        )
        writer._began = time.monotonic()
        writer._before = max(wall_seconds, info.wall_seconds or 0.0)
        writer._resumed = True
        writer._written = rounds
        writer._again = deque()
        writer._created = []
        writer._digests = []
        writer._expected = digests
        return writer

    @property
    def digests(self) -> str:
        """Concatenated digests of all rounds so far (`line_digest`), for a checkpoint."""
        return "".join(self._digests)

    @property
    def wall_seconds(self) -> float:
        """Real seconds that the run has taken so far, including those before it was resumed."""
        return self._before + time.monotonic() - self._began

    def __enter__(self) -> RunWriter:
        """Create or open the folder and lock it; raise if another process is writing the same run."""
        missing = [folder for folder in (self.folder, *self.folder.parents) if not folder.exists()]
        self._created = missing  # innermost first
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not self._resumed:
                self._write_info()
            self._file = os.open(self.folder / ROUNDS, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as cause:
            self._vanish()
            if isinstance(cause, StorageError):
                raise
            if cause.errno in FULL:
                raise storage_error(self.folder, cause) from cause
            raise InputError(f"cannot write a run into {self.folder}: {cause}; give another folder") from cause
        try:
            if not locked(self._file):
                raise InputError(f"{self.folder} is being written by another process: let it end first")
            self._pick_up()
        except BaseException:
            os.close(self._file)
            raise
        return self

    def _pick_up(self) -> None:
        """Position the writer after the last complete line; keep the lines that will be computed again."""
        if not self._resumed:
            os.ftruncate(self._file, 0)
            self._length = 0
            return
        lines = (self.folder / ROUNDS).read_bytes().split(b"\n")[:-1]
        if len(lines) < self._written:
            raise InputError(
                f"{self.folder / ROUNDS} should hold {self._written} rounds, as the checkpoint beside it does, but it "
                f"holds {len(lines)}: it was changed; run it anew"
            )
        check_lines(self.folder / ROUNDS, lines[: self._written], self._expected)
        self._digests = [line_digest(line) for line in lines[: self._written]]
        self._again = deque(lines[self._written :])
        self._length = sum(len(line) + 1 for line in lines)
        with keeping(self.folder / ROUNDS):
            os.ftruncate(self._file, self._length)
            self._write_info()

    def add(self, current: Round) -> bool:
        """Append a round and flush it to disk; return False if it was recorded before; then check that it is equal."""
        line = round_line(current).encode()
        new = not self._again
        if not new:
            recorded = self._again.popleft()
            if recorded != line:
                raise InputError(
                    f"round {current.number} came out otherwise than it is recorded in line {self._written + 1} of "
                    f"{self.folder / ROUNDS}: the line was edited, or the program, its libraries or the data have "
                    f"changed since ({INFO} names versions); run it anew"
                )
            line = recorded
        else:
            self._append(line + b"\n")
        self._digests.append(line_digest(line))
        self._written += 1
        return new

    def _append(self, line: bytes) -> None:
        with keeping(self.folder / ROUNDS):
            try:
                done = 0
                while done < len(line):
                    done += os.pwrite(self._file, line[done:], self._length + done)
                os.fsync(self._file)
            except OSError:
                os.ftruncate(self._file, self._length)  # remove the incomplete line
                raise
        self._length += len(line)

    def finish(self, status: str, message: str = "") -> None:
        """Set the final status and message of the run."""
        self.info = dataclasses.replace(self.info, status=status, message=message)

    def describe(self, **changes: Any) -> None:
        """Change fields of `run.json`, such as the metric of a run that turns out to report only a loss."""
        self.info = dataclasses.replace(self.info, **changes)
        with keeping(self.folder / INFO):
            self._write_info()

    def abandon(self) -> None:
        """Close the files without writing, because the folder was removed or belongs to another run."""
        os.close(self._file)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the files. After an error, the run is marked as interrupted and its rounds are kept.

        A new run that fails with a `FedpaceError` before its first training round is removed.
        """
        try:
            if isinstance(error, FedpaceError) and self._written <= 1 and not self._resumed:
                self._vanish()
                return
            if error is not None and self.info.status == "running":
                self.finish("interrupted", str(error) or type(error).__name__)
            lines, digest = fingerprint(self.folder / ROUNDS) if self.info.ended else (None, None)
            wall = round(self.wall_seconds, 3)
            self.info = dataclasses.replace(self.info, wall_seconds=wall, rounds=lines, digest=digest)
            if error is None:
                with keeping(self.folder / INFO):
                    self._write_info()
            else:
                with contextlib.suppress(OSError):  # on a full disk, report the original error
                    self._write_info()
        finally:
            os.close(self._file)

    def _vanish(self) -> None:
        """Remove the files and folders of a run that failed before its first round."""
        with contextlib.suppress(OSError):
            for name in (ROUNDS, INFO):
                (self.folder / name).unlink(missing_ok=True)
            for folder in self._created:
                if folder.exists() and not any(folder.iterdir()):
                    folder.rmdir()

    def _write_info(self) -> None:
        told = dataclasses.asdict(self.info)
        if not told["robust"]:  # as in records of versions without robust rules
            del told["robust"]
        write_atomically(self.folder / INFO, json_bytes(plain(told)))


def _both(before: str | None, now: str | None) -> str | None:
    """Return the values before and after resuming, as "before, now" if they differ."""
    if before is None or now is None:
        return before or now
    return before if before.split(", ")[-1] == now else f"{before}, {now}"


def versions() -> dict[str, str]:
    """Return the versions of Python, the platform and the packages that a result depends on."""
    found = {"python": platform.python_version(), "platform": f"{sys.platform}-{platform.machine()}"}
    for package in ("fedpace", "numpy", "scipy", "torch", "scikit-learn"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


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
