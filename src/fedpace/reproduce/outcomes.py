"""Results of runs in the short form that tables need, read from run folders or from a file of results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedpace._base.errors import InputError
from fedpace._base.files import json_bytes, read_json, write_atomically
from fedpace.records.holding import meets
from fedpace.records.run import RunRecord
from fedpace.report.estimates import Estimate, time_estimate
from fedpace.reproduce.runs import Wanted

FORMAT = 1


@dataclass(frozen=True)
class SeedOutcome:
    """One run that has ended."""

    seconds: float | None
    """Virtual seconds to the target; None = not reached."""
    rounds: int
    """Up to the target, or to the end."""
    ended: float
    """Virtual seconds at the end."""
    clients: float
    """Per round."""
    status: str
    """Of the record: `reached`, `finished` (the limit of rounds) or `diverged`."""
    key: str = ""
    """`PaperRun.key` of the run."""

    @staticmethod
    def of(record: RunRecord, target: float | None = None, key: str = "") -> SeedOutcome:
        """Return what a record says of its target, or of an easier one."""
        reached = record.reached
        if target is not None:
            met = (now for now in record.evaluated if meets(now.metric, target, record.info.direction))
            reached = next(met, None)
        played = [now for now in record.rounds if now.number > 0]
        last = reached or record.rounds[-1]
        until = [len(set(map(str, now.clients))) for now in played if now.number <= last.number]
        return SeedOutcome(
            seconds=None if reached is None else round(reached.clock, 1),
            rounds=last.number,
            ended=round(record.rounds[-1].clock, 1),
            clients=round(float(np.mean(until)), 1) if until else 0.0,
            status="reached" if reached is not None else record.info.status,
            key=key,
        )


@dataclass(frozen=True)
class Entry:
    """A scheme in a cell: an outcome per seed that was run."""

    wanted: int
    """Seeds that were asked for."""
    outcomes: Mapping[int, SeedOutcome]

    @property
    def times(self) -> list[float]:
        """Seconds of the seeds that reached the target."""
        return [each.seconds for each in self.outcomes.values() if each.seconds is not None]

    @property
    def run(self) -> bool:
        """Whether any seed was run."""
        return bool(self.outcomes)

    @property
    def reached(self) -> bool:
        """Whether every seed that was run reached the target."""
        return self.run and len(self.times) == len(self.outcomes)

    @property
    def estimate(self) -> Estimate | None:
        """Geometric mean and interval of the seconds, where every seed reached the target."""
        return time_estimate(self.times) if self.reached else None

    @property
    def seconds(self) -> float | None:
        """The geometric mean, where every seed reached the target."""
        found = self.estimate
        return None if found is None else found.mean


class ReproducedResults:
    """Entries by their place in the tables, such as `table1/quadratic/random`."""

    def __init__(self, profile: str, entries: Mapping[str, Entry], facts: Mapping[str, Any] | None = None) -> None:
        self.profile = profile
        self.entries = dict(entries)
        self.facts: dict[str, Any] = dict(facts or {})
        """What else was measured, such as the overhead."""

    def __getitem__(self, place: str) -> Entry:
        """Return an entry; it is empty if nothing was run."""
        return self.entries.get(place, Entry(0, {}))

    def known(self, wanted: Wanted) -> SeedOutcome | None:
        """Return the outcome of a run with exactly this configuration; None = there is none."""
        found = self[wanted.place].outcomes.get(wanted.run.seed)
        return found if found is not None and found.key == wanted.run.key else None

    def content(self) -> dict[str, Any]:
        """Return everything as JSON holds it."""
        return {
            "format": FORMAT,
            "profile": self.profile,
            "facts": self.facts,
            "entries": {
                place: {"wanted": entry.wanted, "seeds": {str(s): asdict(o) for s, o in entry.outcomes.items()}}
                for place, entry in self.entries.items()
            },
        }

    def write(self, path: Path) -> None:
        """Write everything as JSON that a person can read."""
        write_atomically(path, json_bytes(self.content()))

    @staticmethod
    def parse(raw: Any, source: str) -> ReproducedResults:
        """Read what `write` wrote."""
        if not isinstance(raw, dict) or raw.get("format") != FORMAT:
            raise InputError(f"{source} does not hold results of `fedpace reproduce` of format {FORMAT}")
        try:
            entries = {
                place: Entry(each["wanted"], {int(s): SeedOutcome(**o) for s, o in each["seeds"].items()})
                for place, each in raw["entries"].items()
            }
            return ReproducedResults(raw["profile"], entries, raw.get("facts"))
        except (KeyError, TypeError, ValueError, AttributeError) as cause:
            raise InputError(f"{source} is damaged: {cause}") from cause

    @staticmethod
    def read(path: Path) -> ReproducedResults:
        """Read a file of results."""
        return ReproducedResults.parse(read_json(path), str(path))


def collect(
    profile: str, wanted: Iterable[Wanted], store: Path, before: ReproducedResults | None = None
) -> ReproducedResults:
    """Return what is in the folder of runs, whether or not all of it has been run.

    Runs that are not there are looked up in `before`, results of an earlier time.
    """
    listed: Sequence[Wanted] = list(wanted)
    counts: dict[str, int] = {}
    found: dict[str, dict[int, SeedOutcome]] = {}
    for each in listed:
        counts[each.place] = counts.get(each.place, 0) + 1
        record = each.run.record(store)
        mine = found.setdefault(each.place, {})
        if record is not None and record.info.ended:
            mine[each.run.seed] = SeedOutcome.of(record, each.target, each.run.key)
        elif before is not None and (known := before.known(each)) is not None:
            mine[each.run.seed] = known
    return ReproducedResults(profile, {place: Entry(counts[place], outcomes) for place, outcomes in found.items()})
