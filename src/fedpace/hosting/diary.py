"""A server's folder as a run folder: `run.json` and `rounds.jsonl`, which `fedpace report` reads as any run's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpace.core.errors import InputError
from fedpace.records.round import Round
from fedpace.records.run import INFO, ROUNDS, RunInfo, read_info
from fedpace.records.writer import RunWriter

METRICS = {"accuracy": "up", "loss": "down"}
"""What is looked for in what a server's evaluation says, and where better is."""


class Diary:
    """Writes rounds when all is known of them: a round's metric comes after its step, or never.

    Args:
        folder: of the server.
        info: what is run.
    """

    def __init__(self, folder: Path, info: RunInfo) -> None:
        self._folder = folder
        self._info = info
        self._pending: Round | None = Round(0, clock=0.0, seconds=0.0, overhead=0.0, metric=None, loss=None)
        self._writer: RunWriter | None = None
        self._resumes = False

    def go_on(self, last: Round) -> None:
        """Take over a folder whose state is that after the round `last`: its line may be missing."""
        lines = self._lines()
        if lines not in (last.number, last.number + 1):
            raise InputError(
                f"{self._folder / ROUNDS} holds {lines} rounds, but the state beside it is that after round "
                f"{last.number}: it was changed; use another folder"
            )
        self._pending = last if lines == last.number else None
        self._resumes = True

    def add(self, current: Round) -> None:
        """Note a round; it is written with the next one at the latest."""
        self.flush()
        self._pending = current

    @property
    def unwritten(self) -> bool:
        """Whether a round is noted and not written."""
        return self._pending is not None

    def evaluated(self, metrics: Mapping[str, Any]) -> None:
        """Note what the server's own evaluation of the last round said."""
        if self._pending is None:
            return
        found = {name: value for name in METRICS if isinstance(value := metrics.get(name), int | float)}
        if self._writer is None and found and "accuracy" not in found:
            self._info = dataclasses.replace(self._info, metric="loss", direction="down")
        loss = None if "loss" not in found else float(found["loss"])
        metric = found.get(self._info.metric)
        self._pending = dataclasses.replace(self._pending, metric=None if metric is None else float(metric), loss=loss)
        self.flush()

    def flush(self) -> None:
        """Write what is noted."""
        if self._pending is None:
            return
        if self._writer is None:
            self._writer = self._open()
            self._info, self._resumes = self._writer.info, True
        self._writer.add(self._pending)
        self._pending = None

    def close(self, status: str = "interrupted") -> None:
        """Say how the sitting ended, and let others write."""
        if self._pending is not None and (self._writer is not None or self._pending.number):
            self.flush()
        elif self._writer is None and self._resumes and read_info(self._folder).status != status:
            self._writer = self._open()  # all was written when the server before was killed, but how it ended
        if self._writer is not None:
            self._writer.finish(status)
            self._writer.__exit__(None, None, None)
            self._writer = None

    def _open(self) -> RunWriter:
        if not self._resumes and self._lines() <= 1:
            # A server that stopped before its first step was saved has left nothing to go on from.
            for name in (INFO, ROUNDS):
                (self._folder / name).unlink(missing_ok=True)
        opened = (
            RunWriter.resume(self._folder, rounds=self._lines())
            if self._resumes
            else RunWriter(self._folder, self._info)
        )
        return opened.__enter__()

    def _lines(self) -> int:
        path = self._folder / ROUNDS
        return path.read_bytes().count(b"\n") if path.exists() else 0
