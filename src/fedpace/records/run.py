"""Reads run folders: `run.json` holds the configuration of a run, `rounds.jsonl` one line per round.

`rounds.jsonl` does not depend on the machine or the time of day: the same seed gives the same bytes. Each line is
flushed to disk before the next round starts, so a crash loses at most the current round. An incomplete last line is
ignored.

`Round` is one line of it, which the simulator, Flower and NVFlare all write.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedpace._base.codec import gathered
from fedpace._base.errors import InputError
from fedpace._base.files import check_file, read_json
from fedpace.core.coordinator import Coordinator
from fedpace.core.step_log import StepLog
from fedpace.core.types import ClientId
from fedpace.records.holding import Direction, Looks, held_from


@dataclass(frozen=True, repr=False)
class Round:
    """The record of one round. Round 0 is the initial model, before any training."""

    number: int
    clock: float
    """Seconds at the end of the round, virtual or real."""
    seconds: float
    """Duration of the round itself."""
    overhead: float
    """Seconds before the round: for warm-ups, probes, and waiting for available clients."""
    metric: float | None
    """Accuracy or loss of the shared model on the test data, after the round; None = not evaluated."""
    loss: float | None
    clients: tuple[ClientId, ...] = ()
    weights: tuple[float, ...] = ()
    mode: str = "average"
    failed: tuple[ClientId, ...] = ()
    """Clients that crashed or were late."""
    train_loss: float | None = None
    objective: float | None = None
    predicted_seconds: float | None = None
    status: str = "ok"
    facts: Mapping[str, Any] = field(default_factory=dict)
    warmed: tuple[ClientId, ...] = ()
    """Clients that only measured before the round (warm-up)."""
    heard: tuple[ClientId, ...] = ()
    """Clients that answered late: an earlier warm-up, or a round that had already ended."""
    probed: tuple[ClientId, ...] = ()
    """Clients that were probed before the selection."""
    step_factor: float = 1.0
    """Factor by which the server step multiplied the averaged update."""
    carried: float = 0.0
    """Part of this step that the next step continues (momentum)."""
    work: float | None = None
    """Client-seconds since the last step. A client works from the start of its task until it answers, fails or is
    cancelled. None, here and below: not known."""
    wasted: int | None = None
    """Training tasks that failed or were cancelled, and so did not count in a step."""
    bytes_down: int | None = None
    """Bytes sent to clients since the last step: one model with every task of any kind."""
    bytes_up: int | None = None
    """Bytes sent by clients: trained models, and the moments and update sketches that the scheme asked for."""
    by_speed: tuple[float, ...] | None = None
    """Metric of the shared model on the data of each tenth of the clients, fastest first; None if not evaluated."""

    def __repr__(self) -> str:
        """Return a short summary, for a loop that prints rounds."""
        metric = "" if self.metric is None else f", metric {self.metric:.4g}"
        failed = f" ({len(self.failed)} failed)" if self.failed else ""
        clients = f"{len(self.clients)} client{'' if len(self.clients) == 1 else 's'}{failed}"
        return f"<{type(self).__name__} {self.number}: clock {self.clock:,.4g} s, {clients}{metric}>"


def recorded(
    coordinator: Coordinator,
    turn: StepLog,
    *,
    since: float,
    losses: Sequence[float],
    model_bytes: int,
    protocol_bytes: int = 0,
    stepping: Mapping[str, Any],
    notes: Mapping[str, Any] | None = None,
    **more: Any,
) -> Round:
    """Return the record of the last step.

    Args:
        coordinator: the coordinator, after the step.
        turn: the coordinator's log of the step.
        since: time of the step before.
        losses: training losses of the step's clients.
        model_bytes: size of a sent model.
        protocol_bytes: bytes that secure aggregation adds to each upload.
        stepping: facts of the server step; empty if the model did not move.
        notes: what the server rule says about the step (`fedpace.core.server_rule.step_notes`).
        more: fields that only the host knows.
    """
    measured = {
        "number": coordinator.step,
        "clock": coordinator.now,
        "overhead": max(0.0, turn.began - since),
        "metric": None,
        "loss": None,
        "train_loss": float(np.mean(losses)) if losses else None,
        "bytes_down": turn.sent * model_bytes,
        "bytes_up": turn.returned * (model_bytes + protocol_bytes) + turn.reported,
        "facts": {**turn.explained(coordinator.ledger.ids), **(notes or {})},
    }
    return gathered(Round, measured | more, stepping, vars(turn), vars(turn.why))


FORMAT = 1
INFO = "run.json"
ROUNDS = "rounds.jsonl"
TRACKING = "tracking.json"
"""Keys by which experiment trackers find the run again (`fedpace.tracking`)."""
LARGEST = 2**32
"""Largest `rounds.jsonl` that is read, in bytes."""


@dataclass(frozen=True)
class RunInfo:
    """The content of `run.json`: configuration and status of a run."""

    label: str
    """Name of the scheme in tables and pictures."""
    selector: str
    options: Mapping[str, Any]
    """Options of the selector."""
    seed: int
    metric: str
    """`accuracy` or `loss`."""
    direction: Direction
    """Whether a better metric is `up` or `down`."""
    target: float | None
    experiment: Mapping[str, Any]
    """The whole configuration, as a TOML table."""
    server: Mapping[str, Any] = field(default_factory=dict)
    """Name and options of the server step."""
    robust: Mapping[str, Any] = field(default_factory=dict)
    """Name and options of the robust rule, and `validation`; empty, and not written, without a robust rule."""
    expected_delays: tuple[float, ...] = ()
    """Mean delay of each client in seconds."""
    names: tuple[str, ...] = ()
    """The data set's names of the clients, which rounds call by number; empty = no names."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """The engine and why it was chosen; it does not change the rounds."""
    status: str = "running"
    """`running`, `reached` (the target is held), `finished` (a limit), `diverged` or `interrupted`."""
    message: str = ""
    started: str = ""
    wall_seconds: float | None = None
    """Real seconds in total over all resumptions; if the process was killed, up to the last checkpoint."""
    sittings: int = 1
    """How often the run was started or resumed."""
    message_bytes: int | None = None
    """Bytes of one message in either direction, from which delays are computed."""
    hold: int = 1
    """Number of instants over which the mean must meet the target; 1: once is enough."""
    hold_every: float | None = None
    """Seconds between these instants."""
    looks: Looks = "rounds"
    """When the target may be held from: `rounds` or `grid`, see `fedpace.records.holding`."""
    clocked_from: str | None = None
    """Delay model under which the rounds were trained, if they were reclocked (`fedpace.sim.reclock`)."""
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str | None = None
    """Git commit of the folder in which fedpace was run; `+` = with uncommitted changes, `?` = not known whether."""
    rounds: int | None = None
    """Number of lines of `rounds.jsonl` when the run ended; None before that."""
    digest: str | None = None
    """SHA-256 of `rounds.jsonl` when the run ended."""
    format: int = FORMAT

    @property
    def ended(self) -> bool:
        """Whether the run is complete: it need not be resumed."""
        return self.status not in ("running", "interrupted")


@dataclass(frozen=True, repr=False)
class RunRecord:
    """A run that was read from disk."""

    info: RunInfo
    rounds: tuple[Round, ...]

    def __repr__(self) -> str:
        """Return the scheme, the seed, the number of rounds and the status."""
        info = self.info
        return f"<{type(self).__name__} {info.label}, seed {info.seed}: {len(self.rounds)} rounds, {info.status}>"

    @property
    def reached(self) -> Round | None:
        """The round from which the target is held, its clock is the time to target; None if it is not held."""
        return self._met[1]

    @property
    def crossed(self) -> Round | None:
        """The first round that meets the target, held or not."""
        return self._met[0]

    @property
    def censored(self) -> bool:
        """Whether the run stopped at its original target before it held the target that `info` has now.

        It is not known when such a run would have held the new target, so it must not count as a miss.
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
    """Read `run.json` of a run folder, without the rounds."""
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
    """Read a run folder; the run need not be finished."""
    info = read_info(folder)
    path = folder / ROUNDS
    check_rounds(folder, info)
    if not path.exists():
        return RunRecord(info, ())
    return RunRecord(info, tuple(_read_rounds(path)))


def check_rounds(folder: Path, info: RunInfo) -> None:
    """Raise if a run has ended and its `rounds.jsonl` has changed since."""
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
    """Return the number of lines and the SHA-256 of a file; a missing file counts as empty."""
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
"""Characters of a line's digest: enough to notice an edit, and short enough to store one per round."""


def line_digest(line: bytes) -> str:
    """Return the short digest of a line of `rounds.jsonl`, given without its line break."""
    return hashlib.sha256(line).hexdigest()[:DIGEST]


def check_lines(path: Path, lines: Iterable[bytes], digests: str) -> None:
    """Raise if a line differs from its digest in a checkpoint or a server's state; the error names the first line."""
    for place, line in enumerate(lines):
        known = digests[DIGEST * place : DIGEST * (place + 1)]
        if known and line_digest(line) != known:
            raise InputError(
                f"line {place + 1} of {path} is not what was recorded: it was changed after the run was stopped. "
                f"Bring the line back, or remove {path.parent} and run it anew"
            )


def find_runs(folder: Path) -> list[RunRecord]:
    """Read every run in or below `folder`, sorted by seed and then in the experiment's order of schemes."""
    found = sorted(path.parent for path in folder.rglob(INFO))
    if not found:
        lacking = "there are none" if folder.exists() else "there is no such folder"
        raise InputError(f"expected runs below {folder} (folders with a {INFO}), but {lacking}")
    return in_order(read_run(path) for path in found)


def in_order(runs: Iterable[RunRecord]) -> list[RunRecord]:
    """Sort runs by seed, and then in the experiment's order of schemes."""
    return sorted(runs, key=lambda run: (run.info.seed, _place(run)))


def _place(run: RunRecord) -> int:
    """Return the scheme's position in the experiment, so that reports keep the order and colours of schemes."""
    listed = run.info.experiment.get("selectors", [])
    labels = [entry.get("label") for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    return labels.index(run.info.label) if run.info.label in labels else len(labels)


def round_line(current: Round) -> str:
    """Return a round as one line of JSON."""
    return json.dumps(plain(dataclasses.asdict(current)), allow_nan=False, separators=(",", ":"))


def parse_round(line: str | bytes) -> Round:
    """Parse a line of `rounds.jsonl`; an invalid line raises ValueError, TypeError or AttributeError."""
    raw: dict[str, Any] = json.loads(line)
    fields: dict[str, Any] = {}
    for name, value in raw.items():
        fields[name] = tuple(value) if isinstance(value, list) else value
    made = Round(**fields)
    check_types(made)
    if len(made.weights) != len(made.clients):
        raise InputError(f"it names {len(made.clients)} clients and {len(made.weights)} weights")
    return made


def _read_rounds(path: Path) -> list[Round]:
    try:
        check_file(path, LARGEST)
        lines = path.read_bytes().split(b"\n")
    except OSError as cause:
        raise InputError(f"{path} cannot be read: {cause}") from cause
    # The last piece is not a round: it is empty, or an incomplete line after a crash.
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
    """Convert `value` to JSON types: NumPy scalars to Python numbers, infinities and NaN to None."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


_known: dict[type, dict[str, Any]] = {}


def check_types(instance: Any) -> None:
    """Raise `InputError` if a field of the dataclass instance does not match its type hint."""
    hints = _hints(type(instance))
    for item in fields(instance):
        value = getattr(instance, item.name)
        if not _fits(hints[item.name], value):
            raise InputError(f"{item.name} cannot be {str(value)[:60]!r}")


def _hints(cls: type) -> dict[str, Any]:
    if cls not in _known:
        _known[cls] = typing.get_type_hints(cls)
    return _known[cls]


def _fits(hint: Any, value: Any) -> bool:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(part, value) for part in parts)
    if origin is typing.Literal:
        return isinstance(value, str) and value in parts
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(parts[0], item) for item in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping)
    if hint is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and abs(value) < 1e300 and not math.isnan(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return not isinstance(hint, type) or hint is object or isinstance(value, hint)
