"""`RunWatch` follows running runs on disk; each look reads only the rounds written since the last look.

Run folders of the simulator and state folders of Flower or NVFlare servers have the same files, so it works for both.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from fedpace._base.errors import InputError
from fedpace.records.influence import Influence
from fedpace.records.round import Round
from fedpace.records.run import INFO, ROUNDS, RunInfo, parse_round, read_info


@dataclass(frozen=True)
class Sight:
    """The state of a run at one look."""

    folder: Path
    info: RunInfo
    last: Round | None
    """The last recorded round; None if there is none yet."""
    metric: float | None
    """Metric at the last evaluation."""
    quiet: float
    """Real seconds since the last record."""
    influence: Influence
    """Bounds on the clients' influence so far."""


class _Tail:
    """Reads the rounds of one run as they are appended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read = 0
        self._last: Round | None = None
        self._metric: float | None = None
        self._influence = Influence()

    def look(self) -> Sight:
        path = self.folder / ROUNDS
        changed = time.time()
        if path.exists():
            changed = path.stat().st_mtime
            if path.stat().st_size < self._read:  # the run was started again
                self._read, self._last, self._metric, self._influence = 0, None, None, Influence()
            with path.open("rb") as file:
                file.seek(self._read)
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read += len(whole)
            for line in whole.splitlines():
                self._add(line, path)
        quiet = max(0.0, time.time() - changed)
        return Sight(self.folder, read_info(self.folder), self._last, self._metric, quiet, self._influence)

    def _add(self, line: bytes, path: Path) -> None:
        try:
            self._last = parse_round(line)
        except (ValueError, TypeError, AttributeError) as cause:
            raise InputError(f"{path} holds a line that is not a round: {cause}") from cause
        self._metric = self._metric if self._last.metric is None else self._last.metric
        self._influence.add(self._last)


class RunWatch:
    """Follows all runs in or below a folder, including runs that begin later."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tails: dict[Path, _Tail] = {}

    def look(self) -> list[Sight]:
        """Return the current state of every run."""
        for path in sorted(self.folder.rglob(INFO)):
            self._tails.setdefault(path.parent, _Tail(path.parent))
        return [tail.look() for tail in self._tails.values()]
