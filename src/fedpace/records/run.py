"""A run folder: `run.json` says what was run, `rounds.jsonl` what happened, one line per round.

`rounds.jsonl` holds nothing that depends on the machine or the hour: one seed gives one sequence of bytes. Each line is
flushed before the next round starts, so a crash loses at most the round that was running, and a line that was cut in
half is ignored when the folder is read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedpace._base.errors import InputError
from fedpace._base.files import check_file, read_json
from fedpace.core.migrations import current_name
from fedpace.records.fitting import check_types
from fedpace.records.holding import Direction, Looks, held_from
from fedpace.records.round import Round

FORMAT = 1
INFO = "run.json"
ROUNDS = "rounds.jsonl"
LARGEST = 2**32
"""Bytes of rounds that are read."""


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
    server: Mapping[str, Any] = field(default_factory=dict)
    """Name and options of the server step."""
    robust: Mapping[str, Any] = field(default_factory=dict)
    """Name and options of the robust rule, and `validation`; empty, and not written, where there is none."""
    expected_delays: tuple[float, ...] = ()
    """Mean seconds of each client."""
    names: tuple[str, ...] = ()
    """What the data calls each client, which rounds call by its number; empty = nothing else."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Where the clients were trained, and why there: it changes nothing in the rounds."""
    status: str = "running"
    """`running`, `reached` (the target is held), `finished` (a limit), `diverged` or `interrupted`."""
    message: str = ""
    started: str = ""
    wall_seconds: float | None = None
    """Real time, all sittings together; where one was killed, up to its last checkpoint."""
    sittings: int = 1
    """How often the run was begun or resumed."""
    message_bytes: int | None = None
    """What travels each way in a round: what delays are made of."""
    hold: int = 1
    """Instants over which the mean must meet the target for it to count; 1, as in older records: it counts at once."""
    hold_every: float | None = None
    """Seconds from one of these instants to the next."""
    looks: Looks = "rounds"
    """Whether the target may count from every evaluation, or from those that are current at such instants."""
    clocked_from: str | None = None
    """The delay model under which these rounds were trained, where it is not the experiment's own: see `reclock`."""
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str | None = None
    """Of the git checkout that fedpace was run in, where there is one; `+` = with uncommitted changes."""
    rounds: int | None = None
    """Lines of `rounds.jsonl` when the run ended; None while it has not, and in older records."""
    digest: str | None = None
    """SHA-256 of `rounds.jsonl` when the run ended."""
    format: int = FORMAT

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to do."""
        return self.status not in ("running", "interrupted")


@dataclass(frozen=True, repr=False)
class RunRecord:
    """A run read back."""

    info: RunInfo
    rounds: tuple[Round, ...]

    def __repr__(self) -> str:
        """Say which run it is, and how it went."""
        info = self.info
        return f"<{type(self).__name__} {info.label}, seed {info.seed}: {len(self.rounds)} rounds, {info.status}>"

    @property
    def reached(self) -> Round | None:
        """The round from which on the target is held: its clock is the time to target."""
        return self._met[1]

    @property
    def crossed(self) -> Round | None:
        """The first round that meets the target, held or not."""
        return self._met[0]

    @property
    def censored(self) -> bool:
        """Whether it ended with the target that it was run for, before it held the one that is asked for now.

        Then it did not miss the latter: nobody knows when it would have held it.
        """
        return self.info.status == "reached" and self.info.target is not None and self.reached is None

    @cached_property
    def _met(self) -> tuple[Round | None, Round | None]:
        info = self.info
        found = held_from(
            ((current.clock, current.metric) for current in self.rounds),
            info.target,
            info.direction,
            hold=info.hold,
            every=info.hold_every or 0.0,
            looks=info.looks,
        )
        crossed, reached = (None if position is None else self.rounds[position] for position in found)
        return crossed, reached

    @property
    def evaluated(self) -> tuple[Round, ...]:
        """The rounds after which the shared model was evaluated."""
        return tuple(current for current in self.rounds if current.metric is not None)


def read_info(folder: Path) -> RunInfo:
    """Read what was run, without its rounds."""
    raw = read_json(folder / INFO)
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise InputError(f"{folder / INFO} is not a run of format {FORMAT}")
    try:
        info = RunInfo(
            **{**raw, "expected_delays": tuple(raw["expected_delays"]), "names": tuple(raw.get("names", ()))}
        )
        check_types(info)
        return info
    except (KeyError, TypeError, InputError) as cause:
        raise InputError(f"{folder / INFO} is damaged: {cause}") from cause


def read_run(folder: Path) -> RunRecord:
    """Read a run folder, finished or not."""
    info = read_info(folder)
    path = folder / ROUNDS
    check_rounds(folder, info)
    if not path.exists():
        return RunRecord(info, ())
    return RunRecord(info, tuple(_read_rounds(path)))


def check_rounds(folder: Path, info: RunInfo) -> None:
    """Refuse a run that has ended and whose rounds are not those that it ended with."""
    if not info.ended or info.digest is None:
        return
    lines, digest = fingerprint(folder / ROUNDS)
    if (lines, digest) != (info.rounds, info.digest):
        raise InputError(
            f"{folder / ROUNDS} is not what the run ended with: {info.rounds} rounds were recorded, and "
            f"{f'{lines} are there' if lines != info.rounds else 'they were changed'}. Bring the file back, or remove "
            f"{folder} and run it anew"
        )


def fingerprint(path: Path) -> tuple[int, str]:
    """Return the number of lines of a file, and its SHA-256; of one that is not there, those of an empty one."""
    found, lines = hashlib.sha256(), 0
    try:
        check_file(path, LARGEST)
        with path.open("rb") as file:
            while block := file.read(2**20):
                found.update(block)
                lines += block.count(b"\n")
    except FileNotFoundError:
        pass
    except OSError as cause:
        raise InputError(f"{path} cannot be read: {cause}") from cause
    return lines, found.hexdigest()


DIGEST = 8
"""Characters of a line's digest: enough to notice an edit, and few enough to keep one of every round."""


def line_digest(line: bytes) -> str:
    """Return what a line of `rounds.jsonl` is known by, without its line break."""
    return hashlib.sha256(line).hexdigest()[:DIGEST]


def check_lines(path: Path, lines: Iterable[bytes], digests: str) -> None:
    """Refuse rounds that are not those whose digests a checkpoint or a server's state holds; name the first."""
    for place, line in enumerate(lines):
        known = digests[DIGEST * place : DIGEST * (place + 1)]
        if known and line_digest(line) != known:
            raise InputError(
                f"line {place + 1} of {path} is not what was recorded: it was changed after the run was stopped. "
                f"Bring the line back, or remove {path.parent} and run it anew"
            )


def find_runs(folder: Path) -> list[RunRecord]:
    """Read every run below `folder`, by seed and then as the experiment lists the schemes."""
    found = sorted(path.parent for path in folder.rglob(INFO))
    if not found:
        lacking = "there are none" if folder.exists() else "there is no such folder"
        raise InputError(f"expected runs below {folder} (folders with a {INFO}), but {lacking}")
    return in_order(read_run(path) for path in found)


def in_order(runs: Iterable[RunRecord]) -> list[RunRecord]:
    """Return runs by seed, and then as the experiment lists the schemes."""
    return sorted(runs, key=lambda run: (run.info.seed, _place(run)))


def _place(run: RunRecord) -> int:
    """Where the experiment lists the scheme: tables and colours then come back as they were."""
    listed = run.info.experiment.get("selectors", [])
    labels = [entry.get("label") for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    return labels.index(run.info.label) if run.info.label in labels else len(labels)


def round_line(current: Round) -> str:
    """Return a round as one line of JSON."""
    return json.dumps(plain(dataclasses.asdict(current)), allow_nan=False, separators=(",", ":"))


def parse_round(line: str | bytes) -> Round:
    """Return the round of a line of JSON; what does not fit is a ValueError, TypeError or AttributeError."""
    raw: dict[str, Any] = json.loads(line)
    fields: dict[str, Any] = {}
    for name, value in raw.items():
        fields[current_name(name)] = tuple(value) if isinstance(value, list) else value
    made = Round(**fields)
    check_types(made)
    if len(made.weights) != len(made.clients):
        raise InputError(f"it names {len(made.clients)} clients and {len(made.weights)} weights")
    return made


def same_round(recorded: bytes, line: bytes) -> bool:
    """Whether a recorded line is the round of `line`, to the byte; earlier versions had other names for fields."""
    try:
        return recorded == line or round_line(parse_round(recorded)).encode() == line
    except (ValueError, TypeError, AttributeError):
        return False


def _read_rounds(path: Path) -> list[Round]:
    try:
        check_file(path, LARGEST)
        lines = path.read_bytes().split(b"\n")
    except OSError as cause:
        raise InputError(f"{path} cannot be read: {cause}") from cause
    # The last piece is empty after a whole line, and half a round after a crash: neither is a round.
    rounds = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            rounds.append(parse_round(line))
        except (ValueError, TypeError, AttributeError, RecursionError) as cause:
            raise InputError(f"line {number} of {path} is not a round: {cause}") from cause
        if rounds[-1].number != rounds[0].number + number - 1:
            raise InputError(
                f"line {number} of {path} is round {rounds[-1].number}, after round {rounds[-2].number}: lines are "
                "missing or were moved. Bring the file back, or run it anew"
            )
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
