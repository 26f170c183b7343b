"""The state folder of a live server: its lock, the saved state of every step, and the run records for reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

from fedpace._base.errors import InputError, StorageError
from fedpace.core.roster import Settings
from fedpace.core.stepping import ServerStep
from fedpace.core.types import configuration
from fedpace.hosting import state as disk
from fedpace.hosting.lock import FolderLock
from fedpace.records.round import Round
from fedpace.records.run import INFO, ROUNDS, RunInfo, check_lines, line_digest, parse_round, read_info
from fedpace.records.writer import RunWriter
from fedpace.trust.robust import RobustRule

MAY_CHANGE = ("deadline", "moments_every", "hear_late", "trust", "clip", "weight_rate")
"""Settings that may differ after a restart."""
METRICS = ("accuracy", "loss")
"""Metrics that are recorded from a server's evaluation; the first one present is the metric of the run."""


class ServerFolder:
    """Writes the state and the records of a server.

    The record of a round waits for its evaluation, and is written with the next step at the latest.

    Args:
        folder: None = write nothing.
        info: returns the description of the run for `run.json`.
    """

    def __init__(self, folder: Path | None, info: Callable[[], RunInfo]) -> None:
        self._folder = folder
        self._writer: RunWriter | None = None
        self._resumes = False
        self._pending: Round | None = None
        """The last round, until its record is written."""
        if folder is not None:
            self._info, self._lock = info(), FolderLock(folder)
            self._last: disk.Saved | None = None
            """The last saved state; written again if the folder was deleted."""
            self._pending = Round(0, clock=0.0, seconds=0.0, overhead=0.0, metric=None, loss=None)

    def load(self, scheme: Any, settings: Settings) -> disk.Saved | None:
        """Return the state that an earlier server saved, or None; raise InputError if settings or records differ."""
        if self._folder is None:
            return None
        with self.letting_go():
            saved = disk.load(self._folder, scheme)
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
            saved.coordinator.abandon(but=saved.coming)
            last, lines = saved.entry, _rounds(self._folder)
            if not lines and not (self._folder / INFO).exists():
                self._pending = last  # the records were lost: start new ones with this round
                return saved
            check_lines(self._folder / ROUNDS, lines, saved.digests)
            after = _number(lines[0]) + len(lines) if lines else 0
            if after not in (last.number, last.number + 1):
                raise InputError(
                    f"{self._folder / ROUNDS} holds {len(lines)} rounds, but the state beside it is that after round "
                    f"{last.number}: it was changed. Bring it back; or remove {ROUNDS} and {INFO}, and the server goes "
                    f"on from the model of round {last.number} with a new record; or use another folder"
                )
            self._pending = last if after == last.number else None
            self._resumes = True
            return saved

    def save(self, saved: disk.Saved) -> None:
        """Save the state after a step; its record follows after the evaluation or with the next step."""
        if self._folder is not None:
            self._last = saved
            self._check_there(self._folder)
            self._flush()
            digests = "".join(map(line_digest, _rounds(self._folder))) if self._writer is None else self._writer.digests
            disk.save(self._folder, replace(saved, digests=digests))
            self._pending = saved.entry

    def _check_there(self, folder: Path) -> None:
        """Raise StorageError if the folder was deleted or replaced; save the last step again first, if possible."""
        if not self._lock.moved and not (self._lock.removed and not (folder / disk.INDEX).exists()):
            return
        self._lock.release()
        writer, self._writer, self._pending, self._resumes = self._writer, None, None, False
        if writer is not None:
            writer.abandon()
        happened = f"the state folder {folder} was deleted or replaced while the server worked in it: {ROUNDS} is lost"
        if self._last is None:
            raise StorageError(f"{happened}. No step had been made: start the server again, and it begins anew")
        number = self._last.entry.number
        if (folder / disk.INDEX).exists():
            raise StorageError(
                f"{happened}, and so is the model after step {number}, since the folder of that name holds another "
                "server's state now: give every server a folder of its own"
            )
        with self._lock.held():
            disk.save(folder, self._last)
        raise StorageError(
            f"{happened}. The model after step {number} was written anew: start the server again with the same folder, "
            f"and it goes on with step {number + 1}; its record begins with round {number}"
        )

    @property
    def unwritten(self) -> bool:
        """Whether the last step still waits for its evaluation and has no record yet."""
        return self._pending is not None

    def evaluated(self, metrics: Mapping[str, Any]) -> None:
        """Record the metrics of the server's evaluation after the last round."""
        if self._pending is None:
            return
        found = {name: float(value) for name in METRICS if isinstance(value := metrics.get(name), int | float)}
        if self._writer is None and found and "accuracy" not in found:
            self._info = replace(self._info, metric="loss", direction="down")
        self._pending = replace(self._pending, metric=found.get(self._info.metric), loss=found.get("loss"))
        self._flush()

    def acquire(self) -> None:
        """Lock the folder again if it was released."""
        if self._folder is not None:
            self._lock.acquire()

    def close(self, status: str = "interrupted") -> None:
        """Write the last record and the status of the run, and release the folder."""
        if self._folder is None:
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

    @contextmanager
    def letting_go(self) -> Iterator[None]:
        """Context manager: an error inside releases the folder, because in a notebook the object may live on."""
        try:
            yield
        except BaseException:
            self._lock.release()
            raise

    def _flush(self) -> None:
        """Write the record of the last round if it is not written."""
        if self._folder is None or self._pending is None:
            return
        if self._writer is None:
            self._writer = self._open(self._folder)
            self._info, self._resumes = self._writer.info, True
        self._writer.add(self._pending)
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
        raise InputError(f"line 1 of {ROUNDS} is not a round: {cause}. Bring it back, or use another folder") from cause


def run_info(
    scheme: Any, settings: Settings, rule: ServerStep[Any], host: str, clock: str, robust: RobustRule | None = None
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
