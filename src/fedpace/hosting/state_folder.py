"""The state folder of a live server: its lock, the saved state of the last step, and the run records for reports.

Step N is written to `session-N/` and `model-N.npz`, without pickle. Then `paced.json`, which names both, is replaced
atomically, so a crash always leaves a coordinator and a model of the same step. `paced.json` also holds the record of
the round: if a crash prevented the line in `rounds.jsonl`, the restarted server adds it.

`fedpace readmit` writes requests to readmit excluded clients as small files in the folder, whether or not the server
runs. The server processes them at its start and once per step, and deletes one only after the changed state is saved.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import secrets
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import did_you_mean
from fedpace._base.codec import decode, encode
from fedpace._base.errors import InputError, StorageError
from fedpace._base.files import (
    FULL,
    json_bytes,
    keeping,
    npz_chunks,
    read_json,
    read_npz,
    storage_error,
    write_atomically,
)
from fedpace.core.coordinator import Coordinator
from fedpace.core.server_rule import ServerRule
from fedpace.core.settings import Settings
from fedpace.core.types import Need, Outcome, configuration
from fedpace.hosting.replies import Arrays
from fedpace.records.run import (
    INFO,
    ROUNDS,
    Round,
    RunInfo,
    check_lines,
    line_digest,
    parse_round,
    read_info,
    round_line,
)
from fedpace.records.writer import RunWriter, locked
from fedpace.tracking import Tracker, Tracking, described
from fedpace.trust.robust import RobustRule

PATTERN = "readmit-*.json"
"""File names of requests; unfinished files start with a dot."""


def request_readmission(folder: Path, clients: Sequence[str] = ()) -> Path:
    """Write a request to readmit clients into a server's state folder, and return its path.

    Args:
        folder: the server's state folder; the server need not run.
        clients: names of the clients; empty = all excluded clients.
    """
    if not any((folder / name).is_file() for name in (INDEX, LOCK)):
        found = "it holds no server's state" if folder.is_dir() else "there is no such folder"
        raise InputError(
            f"expected the state folder of a Flower or NVFlare server (state=), but {folder} came, and {found}; a "
            "program of your own calls Coordinator.readmit"
        )
    # The time keeps requests in order; the random part separates two requests of the same instant.
    path = folder / PATTERN.replace("*", f"{time.time_ns():020d}-{secrets.token_hex(4)}")
    with keeping(path):
        write_atomically(path, json_bytes({"clients": list(clients) or None}))
    return path


class Readmissions:
    """Processes the requests in a server's state folder.

    Args:
        folder: None = there are no requests.
        log: logger for the results.
    """

    def __init__(self, folder: Path | None, log: logging.Logger) -> None:
        self._folder, self._log = folder, log
        self._done: set[Path] = set()
        """Requests that are processed but not yet deleted."""

    def remedy(self, client: str) -> str:
        """Return the command or method that readmits a client, for log messages."""
        if self._folder is None:
            return "`Coordinator.readmit`"
        return f"`fedpace readmit {shlex.quote(str(self._folder))} {shlex.quote(client)}`"

    def carry_out(self, coordinator: Coordinator) -> None:
        """Process the requests that arrived since the last call."""
        if self._folder is None:
            return
        for path in sorted(set(self._folder.glob(PATTERN)) - self._done):
            self._done.add(path)
            try:
                wanted = _wanted(path)
            except InputError as problem:
                self._log.warning("fedpace: a request to readmit clients is ignored: %s", problem)
                continue
            self._readmit(coordinator, wanted)

    def saved(self) -> None:
        """Delete the processed requests; call it after the state is saved."""
        for path in self._done:
            with contextlib.suppress(OSError):  # this server ignores it from now on
                path.unlink(missing_ok=True)
        self._done = {path for path in self._done if path.exists()}

    def _readmit(self, coordinator: Coordinator, wanted: list[str] | None) -> None:
        if wanted is None:
            readmitted = coordinator.readmit()
            names = ", ".join(repr(client) for client in readmitted) or "nobody was excluded"
            self._log.info("fedpace: all clients are readmitted, as requested: %s", names)
            return
        known = {str(client): client for client in coordinator.clients}
        readmitted = coordinator.readmit([known[name] for name in wanted if name in known])
        for name in wanted:
            if name not in known:
                hint = did_you_mean(name, list(known))
                self._log.warning("fedpace: %r was to be readmitted, but there is no such client.%s", name, hint)
            elif known[name] in readmitted:
                self._log.info("fedpace: %r is readmitted, as requested", name)
            else:
                self._log.info("fedpace: %r was to be readmitted, but it was not excluded", name)


def _wanted(path: Path) -> list[str] | None:
    """Return the clients named in a request file; None = all clients."""
    content: Any = read_json(path)
    clients = content.get("clients") if isinstance(content, dict) else ""
    if clients is None and "clients" in content:
        return None
    if not isinstance(clients, list) or not all(isinstance(name, str) for name in clients):
        raise InputError(f"{path} must hold a list of names, or null, as `clients`")
    return list(dict.fromkeys(clients))


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


FORMAT = 2
INDEX = "paced.json"
UNSEEN = "coming-"
"""Prefix of the names of arrays in `Saved.unseen`."""


@dataclass(frozen=True, eq=False)
class Saved:
    """The state after one step."""

    coordinator: Coordinator
    model: Arrays
    record: Round
    """The record of the last round."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further JSON values of the host."""
    extra_arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Further arrays of the host."""
    unseen: dict[int, Outcome] = field(default_factory=dict)
    """Task id -> measurement that was read, but does not count yet on the clock `reported`."""
    digests: str = ""
    """Digests of the rounds recorded before `record` (`RunWriter.digests`); empty in older states."""


def save_state(folder: Path, saved: Saved) -> None:
    """Write the state, then delete the previous one; raise StorageError if writing fails."""
    number = saved.coordinator.step
    session, model = f"session-{number}", f"model-{number}.npz"
    # Use numbers, because an npz cannot hold every name that a model may use.
    tables: dict[str, Any] = {f"model-{i}": np.asarray(array) for i, array in enumerate(saved.model.values())}
    tables |= {f"own-{i}": array for i, array in enumerate(saved.extra_arrays.values())}
    reported: dict[str, NDArray[Any]] = {}
    coming = encode(saved.unseen, reported)
    tables |= {UNSEEN + name: array for name, array in reported.items()}
    index = {
        "format": FORMAT,
        "round": number,
        "session": session,
        "model": model,
        "arrays": list(saved.model),
        "own": list(saved.extra_arrays),
        "entry": round_line(saved.record),
        "facts": saved.extra,
        "coming": coming,
        "digests": saved.digests,
    }
    with keeping(folder):
        write_atomically(folder / model, npz_chunks(tables))
        saved.coordinator.save(folder / session)
        write_atomically(folder / INDEX, json_bytes(index))
    for stale in folder.glob("session-*"):
        if stale.name != session:
            shutil.rmtree(stale, ignore_errors=True)
    for stale in folder.glob("model-*.npz"):
        if stale.name != model:
            stale.unlink(missing_ok=True)


def load_state(folder: Path, policy: Any, offers: Iterable[Need]) -> Saved | None:
    """Return the last saved state for a host that offers these facts; None if there is none."""
    if not (folder / INDEX).exists():
        return None
    index = read_json(folder / INDEX)
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise InputError(f"{folder / INDEX} is not a server's state of format {FORMAT}: use another folder")
    try:
        stored = read_npz(folder / Path(index["model"]).name)
        reported = {name.removeprefix(UNSEEN): stored[name] for name in stored if name.startswith(UNSEEN)}
        return Saved(
            coordinator=Coordinator.restore(folder / Path(index["session"]).name, policy, offers=offers),
            model={key: stored[f"model-{i}"] for i, key in enumerate(index["arrays"])},
            record=parse_round(index["entry"]),
            extra=dict(index["facts"]),
            extra_arrays={key: stored[f"own-{i}"] for i, key in enumerate(index["own"])},
            unseen=decode(dict[int, Outcome], index.get("coming", []), reported),
            digests=str(index.get("digests", "")),
        )
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as cause:
        raise InputError(f"{folder / INDEX} is damaged: {cause!r}") from cause


MAY_CHANGE = ("deadline", "moments_every", "hear_late", "trust", "clip", "weight_rate")
"""Settings that may differ after a restart."""
METRIC_NAMES = {
    "accuracy": ("accuracy", "eval_acc", "eval_accuracy", "eval-acc", "eval-accuracy", "val_accuracy", "acc"),
    "loss": ("loss", "eval_loss", "eval-loss", "val_loss"),
}
"""Recorded metric -> its possible names in an evaluation. A run without accuracy is judged by its loss."""


class StateFolder:
    """Writes the state and the records of a server.

    The record of a round waits for its evaluation, and is written with the next step at the latest.

    Args:
        folder: None = write nothing.
        info: returns the description of the run for `run.json`.
        track: experiment trackers that get every record too; they also work without a folder.
    """

    def __init__(self, folder: Path | None, info: Callable[[], RunInfo], track: tuple[Tracker, ...] = ()) -> None:
        self._folder = folder
        self._writer: RunWriter | None = None
        self._resumes = False
        self._judged = False
        """Whether a metric was recorded, so that the metric of the run is known."""
        self._pending: Round | None = None
        """The last round, until its record is written."""
        self._track = track
        self._tracking: Tracking | None = None
        if folder is not None or track:
            self._info = info()
            self._pending = Round(0, clock=0.0, seconds=0.0, overhead=0.0, metric=None, loss=None)
        if folder is not None:
            self._lock = FolderLock(folder)
            self._last: Saved | None = None
            """The last saved state; written again if the folder was deleted."""

    def load(self, scheme: Any, settings: Settings, offers: Iterable[Need]) -> Saved | None:
        """Return the state that an earlier server saved, or None; raise InputError if settings or records differ."""
        if self._folder is None:
            return None
        with self.released_on_error():
            saved = load_state(self._folder, scheme, offers)
            if saved is None:
                return None
            found = saved.coordinator.settings
            for name, wanted in vars(settings).items():
                if name not in MAY_CHANGE and (before := getattr(found, name)) != wanted:
                    raise InputError(
                        f"the state in {self._folder} was made with {name} = {before!r}, but {wanted!r} is asked for: "
                        "give the same, or use another folder"
                    )
            saved.coordinator.settings = settings
            trust = saved.coordinator.ledger.trust
            trust.on, trust.clip, trust.rate = settings.trust, settings.clip, settings.weight_rate
            saved.coordinator.abandon(but=saved.unseen)
            last, lines = saved.record, _rounds(self._folder)
            if not lines and not (self._folder / INFO).exists():
                self._pending = last  # the records were lost: start new ones with this round
                return saved
            check_lines(self._folder / ROUNDS, lines, saved.digests)
            after = _number(lines[0]) + len(lines) if lines else 0
            if after not in (last.number, last.number + 1):
                raise InputError(
                    f"{self._folder / ROUNDS} holds {len(lines)} rounds, but the state beside it is that after round "
                    f"{last.number}: it was changed. Restore it; or remove {ROUNDS} and {INFO}, and the server goes "
                    f"on from the model of round {last.number} with a new record; or use another folder"
                )
            self._pending = last if after == last.number else None
            self._info, self._resumes = read_info(self._folder), True
            self._judged = any(parse_round(line).metric is not None for line in lines)
            return saved

    def save(self, saved: Saved) -> None:
        """Save the state after a step; its record follows after the evaluation or with the next step."""
        if self._folder is None:
            if self._track:
                self._flush()
                self._pending = saved.record
        else:
            self._last = saved
            self._check_there(self._folder)
            self._flush()
            digests = "".join(map(line_digest, _rounds(self._folder))) if self._writer is None else self._writer.digests
            save_state(self._folder, replace(saved, digests=digests))
            self._pending = saved.record

    def _check_there(self, folder: Path) -> None:
        """Raise StorageError if the folder was deleted or replaced; save the last step again first, if possible."""
        if not self._lock.moved and not (self._lock.removed and not (folder / INDEX).exists()):
            return
        self._lock.release()
        writer, self._writer, self._pending, self._resumes = self._writer, None, None, False
        if writer is not None:
            writer.abandon()
        happened = f"the state folder {folder} was deleted or replaced while the server worked in it: {ROUNDS} is lost"
        if self._last is None:
            raise StorageError(f"{happened}. No step had been made: start the server again, and it begins anew")
        number = self._last.record.number
        if (folder / INDEX).exists():
            raise StorageError(
                f"{happened}, and so is the model after step {number}, since the folder of that name holds another "
                "server's state now: give every server a folder of its own"
            )
        with self._lock.held():
            save_state(folder, self._last)
        raise StorageError(
            f"{happened}. The model after step {number} was written anew: start the server again with the same folder, "
            f"and it goes on with step {number + 1}; its record begins with round {number}"
        )

    @property
    def unwritten(self) -> bool:
        """Whether the last step still waits for its evaluation and has no record yet."""
        return self._pending is not None

    def evaluated(self, metrics: Mapping[str, Any]) -> None:
        """Record the metrics of an evaluation after the last round, on the server or on clients."""
        if self._pending is None:
            return
        found = {
            metric: float(metrics[name])
            for metric, names in METRIC_NAMES.items()
            for name in reversed(names)  # the first name counts
            if isinstance(metrics.get(name), int | float)
        }
        if found and not self._judged:
            self._judged = True
            if "accuracy" not in found:
                self._info = replace(self._info, metric="loss", direction="down")
                if self._writer is not None:
                    self._writer.describe(metric="loss", direction="down")
        self._pending = replace(self._pending, metric=found.get(self._info.metric), loss=found.get("loss"))
        self._flush()

    def start(self) -> None:
        """Lock the folder again if it was released, and record that a resumed run is running."""
        if self._folder is not None:
            self._lock.acquire()
            if self._resumes and self._writer is None:
                self._writer = self._open(self._folder)

    def close(self, status: str = "interrupted") -> None:
        """Write the last record and the status of the run, and release the folder."""
        if self._folder is None:
            if self._pending is not None and self._pending.number:
                self._flush()
            self._end_tracking(status)
            return
        try:
            self._check_there(self._folder)
            if self._pending is not None and (self._writer is not None or self._pending.number):
                self._flush()
            elif self._writer is None and self._resumes and read_info(self._folder).status != status:
                # The earlier server was killed after all rounds were written, but before its status was.
                self._writer = self._open(self._folder)
            if self._writer is not None:
                writer, self._writer = self._writer, None
                writer.finish(status)
                writer.__exit__(None, None, None)
        finally:
            if self._writer is not None:  # e.g. the disk is full: release the records too
                self._writer.abandon()
                self._writer = None
            self._lock.release()
            self._end_tracking(status)

    def _end_tracking(self, status: str) -> None:
        if self._tracking is not None:
            self._tracking.close(status)
            self._tracking = None

    @contextmanager
    def released_on_error(self) -> Iterator[None]:
        """Context manager: an error inside releases the folder, because in a notebook the object may live on."""
        try:
            yield
        except BaseException:
            self._lock.release()
            raise

    def _flush(self) -> None:
        """Write the record of the last round if it is not written."""
        if self._pending is None:
            return
        if self._folder is not None:
            if self._writer is None:
                self._writer = self._open(self._folder)
                self._info, self._resumes = self._writer.info, True
            self._writer.add(self._pending)
        if self._track:
            if self._tracking is None:
                self._tracking = Tracking(self._track, described(self._info), self._folder)
            self._tracking.add(self._pending, self._info.metric)
        self._pending = None

    def _open(self, folder: Path) -> RunWriter:
        if self._resumes:
            return RunWriter.resume(folder, rounds=len(_rounds(folder))).__enter__()
        # A server that stopped before its first saved step left only a useless record.
        if len(_rounds(folder)) <= 1:
            for name in (INFO, ROUNDS):
                (folder / name).unlink(missing_ok=True)
        return RunWriter(folder, self._info).__enter__()


def _rounds(folder: Path) -> list[bytes]:
    """Return the complete lines of the round records."""
    path = folder / ROUNDS
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def _number(line: bytes) -> int:
    """Return the round number in a line; the first line is not round 0 if earlier records were lost."""
    try:
        return parse_round(line).number
    except (ValueError, TypeError, AttributeError, RecursionError) as cause:
        raise InputError(f"line 1 of {ROUNDS} is not a round: {cause}. Restore it, or use another folder") from cause


def run_info(
    scheme: Any, settings: Settings, rule: ServerRule[Any], host: str, clock: str, robust: RobustRule | None = None
) -> RunInfo:
    """Return the description of a server's run for `run.json`."""
    return RunInfo(
        label=scheme.name,
        selector=scheme.name,
        options=configuration(scheme),
        seed=settings.seed,
        metric="accuracy",
        direction="up",
        target=None,
        experiment={"name": f"{scheme.name} on {host}", "host": host, "clock": clock, **vars(settings)},
        server={"name": rule.name, **configuration(rule)},
        robust={} if robust is None else {"name": robust.name, **_options(robust)},
    )


def _options(rule: RobustRule) -> dict[str, Any]:
    """Return the options of a robust rule; empty for a custom rule that is not a dataclass."""
    return configuration(rule) if is_dataclass(rule) else {}
