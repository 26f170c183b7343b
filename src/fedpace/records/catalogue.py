"""Finds runs on disk: `comparisons` lists what is below a folder, `RunWatch` follows runs that are still going on.

Run folders of the simulator and state folders of Flower or NVFlare servers have the same files, so both work for both.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpace._base.errors import FedpaceError, InputError
from fedpace._base.files import read_json
from fedpace.records.influence import Influence
from fedpace.records.run import INFO, ROUNDS, Round, RunInfo, parse_round, read_info

PLAN = "plan.json"
"""File that describes a comparison; written before its first run."""
COMPARISON = "comparison.json"
"""File with the numbers of a comparison; written by a report."""


@dataclass(frozen=True)
class ComparisonEntry:
    """Summary of a comparison, or of a single run outside a comparison."""

    folder: str
    experiment: str
    schemes: tuple[str, ...]
    seeds: tuple[int, ...]
    planned: int
    ended: int
    state: str
    """`finished`, `finished, N diverged`, `interrupted`, `running, or killed`, or `damaged: REASON`."""
    best: str | None
    """The fastest scheme according to the report; None without a report."""
    begun: str


def comparison_folders(folder: Path) -> list[Path]:
    """Return the folders of all comparisons in or below `folder`."""
    return sorted(path.parent for path in folder.rglob(PLAN))


def comparisons(folder: Path) -> list[ComparisonEntry]:
    """Return all comparisons and single runs in or below `folder`, latest first."""
    if not folder.is_dir():
        raise InputError(f"expected a folder of runs, but there is no folder {folder}; `fedpace compare` makes runs")
    planned = comparison_folders(folder)
    alone = [
        path.parent
        for path in sorted(folder.rglob(INFO))
        if not any(path.is_relative_to(comparison) for comparison in planned)
    ]
    if not planned and not alone:
        raise InputError(f"there are no runs below {folder}; `fedpace compare` makes some")
    found = [_described(place) for place in [*planned, *alone]]
    return sorted(found, key=lambda each: each.begun, reverse=True)


def _described(folder: Path) -> ComparisonEntry:
    try:
        return _read(folder)
    except FedpaceError as error:  # a damaged comparison must not hide the others
        return ComparisonEntry(str(folder), "", (), (), 0, 0, f"damaged: {error}", None, "")


def _read(folder: Path) -> ComparisonEntry:
    infos = [read_info(path.parent) for path in sorted(folder.rglob(INFO))]
    tables = _tables(folder)
    first: Mapping[str, Any] = next(iter(tables.values()), infos[0].experiment if infos else {})
    schemes = [str(entry.get("label", entry.get("name"))) for entry in first.get("selectors", [])]
    seeds = [int(seed) for seed in first.get("seeds", [])]
    if not tables:
        schemes, seeds = [infos[0].label], [infos[0].seed]
    return ComparisonEntry(
        folder=str(folder),
        experiment=str(first.get("name", "")),
        schemes=tuple(schemes),
        seeds=tuple(seeds),
        planned=len(schemes) * len(seeds) * max(1, len(tables)),
        ended=sum(info.ended for info in infos),
        state=_state(infos, len(schemes) * len(seeds) * max(1, len(tables))),
        best=_best(folder),
        begun=min((info.started for info in infos), default=""),
    )


def _tables(folder: Path) -> Mapping[str, Any]:
    path = folder / PLAN
    if not path.exists():
        return {}
    tables = read_json(path).get("experiments")
    return tables if isinstance(tables, dict) else {}


def _state(infos: list[RunInfo], planned: int) -> str:
    states = [info.status for info in infos]
    if "running" in states:
        return "running, or killed"
    if "interrupted" in states or len(states) < planned:
        return "interrupted"
    if "diverged" in states:
        return f"finished, {states.count('diverged')} diverged"
    return "finished"


def _best(folder: Path) -> str | None:
    try:
        content = json.loads((folder / COMPARISON).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    found = content.get("best") if isinstance(content, dict) else None
    return str(found) if found else None


@dataclass(frozen=True)
class RunState:
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


class _RunReader:
    """Reads the rounds of one run as they are appended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read = 0
        self._last: Round | None = None
        self._metric: float | None = None
        self._influence = Influence()

    def look(self) -> RunState:
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
        return RunState(self.folder, read_info(self.folder), self._last, self._metric, quiet, self._influence)

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
        self._readers: dict[Path, _RunReader] = {}

    def look(self) -> list[RunState]:
        """Return the current state of every run."""
        for path in sorted(self.folder.rglob(INFO)):
            self._readers.setdefault(path.parent, _RunReader(path.parent))
        return [reader.look() for reader in self._readers.values()]
