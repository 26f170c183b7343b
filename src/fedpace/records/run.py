"""A run folder: `run.json` says what was run, `rounds.jsonl` what happened, one line a round.

`rounds.jsonl` holds nothing that depends on the machine or the hour: one seed gives one sequence of bytes. Each line is
flushed before the next round starts, so a crash loses at most the round that was running, and a line that was cut in
half is ignored when the folder is read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from fedpace.core.errors import FedpaceError, InputError
from fedpace.core.files import json_bytes, read_json, write_atomically
from fedpace.sim.round import Round
from fedpace.sim.stopping import Direction, meets

FORMAT = 1
INFO = "run.json"
ROUNDS = "rounds.jsonl"


@dataclass(frozen=True)
class RunInfo:
    """What was run: the whole of `run.json`."""

    label: str
    """Name of the scheme in tables and pictures."""
    selector: str
    options: Mapping[str, Any]
    """Of the selector."""
    seed: int
    metric: str
    """`accuracy` or `loss`."""
    direction: Direction
    """Whether a better metric is `up` or `down`."""
    target: float | None
    experiment: Mapping[str, Any]
    """The whole configuration, as TOML would hold it."""
    expected_delays: tuple[float, ...] = ()
    """Mean seconds of each client."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Where the clients were trained, and why there: it changes nothing in the rounds."""
    status: str = "running"
    """`running`, `reached` (the target), `finished` (a limit), `diverged` or `interrupted`."""
    message: str = ""
    started: str = ""
    wall_seconds: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str | None = None
    """Of the git checkout that fedpace was run in, where there is one; `+` = with uncommitted changes."""
    format: int = FORMAT


@dataclass(frozen=True)
class RunRecord:
    """A run read back."""

    info: RunInfo
    rounds: tuple[Round, ...]

    @property
    def reached(self) -> Round | None:
        """The first round that meets the target."""
        info = self.info
        return next((r for r in self.rounds if meets(r.metric, info.target, info.direction)), None)

    @property
    def evaluated(self) -> tuple[Round, ...]:
        """The rounds after which the shared model was evaluated."""
        return tuple(current for current in self.rounds if current.metric is not None)


class RunWriter:
    """Writes a run as it happens. Use it as a context manager: leaving it says how the run ended."""

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
        self._began = datetime.now(UTC)
        self._written = 0
        self._created: list[Path] = []

    def __enter__(self) -> RunWriter:
        """Create the folder."""
        missing = [folder for folder in (self.folder, *self.folder.parents) if not folder.exists()]
        self._created = missing  # innermost first
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write_info()
            self._file = (self.folder / ROUNDS).open("w", encoding="utf-8")
        except OSError as cause:
            self._vanish()
            raise InputError(f"cannot write a run into {self.folder}: {cause}; give another folder") from cause
        return self

    def add(self, current: Round) -> None:
        """Append a round, and make sure that it is on disk."""
        self._file.write(round_line(current) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._written += 1

    def finish(self, status: str, message: str = "") -> None:
        """Say how the run ended."""
        self.info = dataclasses.replace(self.info, status=status, message=message)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the files. A run that an error ended is marked as interrupted, with its rounds kept."""
        self._file.close()
        if isinstance(error, FedpaceError) and self._written <= 1:
            self._vanish()
            return
        if error is not None and self.info.status == "running":
            self.finish("interrupted", str(error) or type(error).__name__)
        elapsed = (datetime.now(UTC) - self._began).total_seconds()
        self.info = dataclasses.replace(self.info, wall_seconds=round(elapsed, 3))
        self._write_info()

    def _vanish(self) -> None:
        """Take back a run that was refused before its first round: a mistake leaves nothing behind."""
        with contextlib.suppress(OSError):
            for name in (ROUNDS, INFO):
                (self.folder / name).unlink(missing_ok=True)
            for folder in self._created:
                if folder.exists() and not any(folder.iterdir()):
                    folder.rmdir()

    def _write_info(self) -> None:
        write_atomically(self.folder / INFO, json_bytes(plain(dataclasses.asdict(self.info))))


def read_run(folder: Path) -> RunRecord:
    """Read a run folder, finished or not."""
    raw = read_json(folder / INFO)
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise InputError(f"{folder / INFO} is not a run of format {FORMAT}")
    try:
        info = RunInfo(**{**raw, "expected_delays": tuple(raw["expected_delays"])})
    except (KeyError, TypeError) as cause:
        raise InputError(f"{folder / INFO} is damaged: {cause}") from cause
    path = folder / ROUNDS
    if not path.exists():
        return RunRecord(info, ())
    return RunRecord(info, tuple(_read_rounds(path)))


def find_runs(folder: Path) -> list[RunRecord]:
    """Read every run below `folder`, by seed and then as the experiment lists the schemes."""
    found = sorted(path.parent for path in folder.rglob(INFO))
    if not found:
        raise InputError(f"expected runs below {folder} (folders with a {INFO}), but there are none")
    runs = [read_run(path) for path in found]
    return sorted(runs, key=lambda run: (run.info.seed, _place(run)))


def _place(run: RunRecord) -> int:
    """Where the experiment lists the scheme: tables and colours then come back as they were."""
    listed = run.info.experiment.get("selectors", [])
    labels = [entry.get("label") for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    return labels.index(run.info.label) if run.info.label in labels else len(labels)


def round_line(current: Round) -> str:
    """Return a round as one line of JSON."""
    return json.dumps(plain(dataclasses.asdict(current)), allow_nan=False, separators=(",", ":"))


def _read_rounds(path: Path) -> list[Round]:
    lines = path.read_bytes().split(b"\n")
    # The last piece is empty after a whole line, and half a round after a crash: neither is a round.
    rounds = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            raw: dict[str, Any] = json.loads(line)
            fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in raw.items()}
            rounds.append(Round(**fields))
        except (ValueError, TypeError, AttributeError) as cause:
            raise InputError(f"line {number} of {path} is not a round: {cause}") from cause
    return rounds


def plain(value: Any) -> Any:
    """Return `value` with everything as JSON knows it: NumPy scalars unpacked, infinities and NaN as null."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def versions() -> dict[str, str]:
    """Return the versions of what a result depends on."""
    found = {"python": platform.python_version(), "platform": f"{sys.platform}-{platform.machine()}"}
    for package in ("fedpace", "numpy", "scipy", "torch", "scikit-learn"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """Return the commit of the checkout in the current folder, or None outside of one."""
    try:
        head = _git("rev-parse", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()
