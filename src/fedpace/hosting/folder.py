"""A server's folder: this server's alone, saved after every step, and a run folder that `fedpace report` reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedpace.core.errors import InputError
from fedpace.core.roster import Settings
from fedpace.core.stepping import ServerStep
from fedpace.core.types import configuration
from fedpace.hosting import state as disk
from fedpace.hosting.diary import Diary
from fedpace.hosting.lock import FolderLock
from fedpace.records.run import RunInfo

MAY_CHANGE = ("deadline", "moments_every", "hear_late", "trust", "screen")
"""Settings that a restarted server may be given anew."""


class ServerFolder:
    """What a server leaves behind.

    Args:
        folder: None = nothing.
        info: tells what is run.
    """

    def __init__(self, folder: Path | None, info: Callable[[], RunInfo]) -> None:
        self._folder = folder
        self._diary = None if folder is None else Diary(folder, info())
        self._lock = None if folder is None else FolderLock(folder)

    def load(self, scheme: Any, settings: Settings) -> disk.Saved | None:
        """Return what an earlier server left, to be gone on from; what is asked for must be what is there."""
        if self._folder is None or self._diary is None:
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
            trust.on, trust.screen.factor, trust.buffers.factor = settings.trust, settings.screen, settings.screen
            saved.coordinator.abandon(but=saved.coming)
            self._diary.go_on(saved.entry)
            return saved

    def save(self, saved: disk.Saved) -> None:
        """Write a step: the state, then its line."""
        if self._folder is not None and self._diary is not None:
            self._diary.flush()
            disk.save(self._folder, saved)
            self._diary.add(saved.entry)

    @property
    def unwritten(self) -> bool:
        """Whether the last step is saved, but not recorded yet: its evaluation may still come."""
        return self._diary is not None and self._diary.unwritten

    def evaluated(self, metrics: Mapping[str, Any]) -> None:
        """Record what the server's own evaluation of the last round said."""
        if self._diary is not None:
            self._diary.evaluated(metrics)

    def acquire(self) -> None:
        """Take the folder, where it was let go."""
        if self._lock is not None:
            self._lock.acquire()

    def close(self, status: str = "interrupted") -> None:
        """End the sitting: the folder may be gone on with."""
        if self._diary is not None:
            self._diary.close(status)
        if self._lock is not None:
            self._lock.release()

    @contextmanager
    def letting_go(self) -> Iterator[None]:
        """Inside, an error lets others have the folder: in a notebook it may live for long."""
        try:
            yield
        except BaseException:
            if self._lock is not None:
                self._lock.release()
            raise


def run_info(scheme: Any, settings: Settings, rule: ServerStep[Any], host: str, clock: str) -> RunInfo:
    """Return what `run.json` says of a server's run."""
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
    )
