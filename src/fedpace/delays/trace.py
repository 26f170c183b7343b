"""`trace`: measured delays from a file with columns client, step, seconds and optionally available.

Clients and steps are numbered from 0, and every client needs a row for every step. A gap is an error, unless `gaps =
"hold"`: then the client's previous value fills it (or the first later one). After the last step, the trace starts
again, so that `expected()`, the mean over the steps, is the mean of a long run.

If `available` is 0, seconds may be empty. Such a round gets the client's mean, so that a scheme that asks an absent
client still gets a number; `available(step)` shows who was there. Ours, not the paper's.

`delays_from_array` makes the same model from an array that a program holds.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import numpy as np

from fedpace._base.checks import BoolArray, FloatArray, IntArray, float_array, frozen
from fedpace._base.errors import InputError
from fedpace._base.options import Options
from fedpace.core.types import DelayModel
from fedpace.delays.base import DEFAULT_COMPUTE_SHARE, ComputeShare, check_clients, check_model_bytes, check_step
from fedpace.delays.csv_files import TableFile, read_table

Gaps = Literal["error", "hold"]


class TraceModel:
    """Measured delays and availability: both a DelayModel and an AvailabilityModel."""

    def __init__(
        self, seconds: FloatArray, available: BoolArray, *, compute_share: float = DEFAULT_COMPUTE_SHARE
    ) -> None:
        """Store (steps, clients) tables; `compute_share` of the seconds grows with the work."""
        self._share = compute_share
        self._seconds = frozen(seconds)
        self._available = frozen(available, np.bool_)
        self._mean = frozen(seconds.mean(axis=0))

    @property
    def steps(self) -> int:
        """Number of rounds before the trace repeats."""
        return int(self._seconds.shape[0])

    def expected(self) -> FloatArray:
        """(n,) expected seconds of a round."""
        return self._mean

    def draw(self, step: int) -> FloatArray:
        """(n,) seconds in round `step`."""
        row: FloatArray = self._seconds[check_step(step) % self.steps]
        return row

    def compute_seconds(self, step: int) -> FloatArray:
        """(n,) the part of `draw(step)` that grows with the work."""
        return frozen(self._share * self.draw(step))

    def expected_compute(self) -> FloatArray:
        """(n,) the part of the expected seconds that grows with the work."""
        return frozen(self._share * self._mean)

    def available(self, step: int) -> BoolArray:
        """(n,) True for clients that were available in round `step`."""
        row: BoolArray = self._available[check_step(step) % self.steps]
        return row

    def crashes(self, step: int) -> BoolArray:
        """(n,) always False: a trace records absences, not crashes."""
        check_step(step)
        return frozen(np.zeros(self._mean.size), np.bool_)


@dataclass(frozen=True)
class TraceDelays(Options):
    """Delays from a CSV or parquet file."""

    name: ClassVar[str] = "trace"

    file: str = ""
    """Path of the file."""
    gaps: Gaps = "error"
    """What to do if a client has no row for a step: `error`, or `hold` to repeat its previous value."""
    compute_share: ComputeShare = DEFAULT_COMPUTE_SHARE
    """Part of the seconds that grows with the work of a task, if a scheme sets it; an assumption."""

    def build(self, clients: int, *, model_bytes: int, seed: int) -> DelayModel:
        """Return the delays of the file, which must contain exactly `clients` clients."""
        return self.read(clients, model_bytes=model_bytes)

    def read(self, clients: int, *, model_bytes: int = 0) -> TraceModel:
        """Return the trace, which also contains the availability."""
        clients = check_clients(clients)
        check_model_bytes(model_bytes)
        if not self.file:
            raise InputError("the trace needs a file: set file to a CSV or parquet file with client, step, seconds")
        table = read_table(self.file, required=("client", "step", "seconds"), optional=("available",))
        client, step = table.whole("client"), table.whole("step")
        if (unknown := client >= clients).any():
            row = int(np.flatnonzero(unknown)[0])
            raise InputError(
                f"{table.where(row, 'client')}: client {client[row]} is unknown: there are {clients} clients, "
                f"numbered from 0"
            )
        online = table.flags("available") if "available" in table else np.ones(len(table), dtype=np.bool_)
        return self._arrange(table, client, step, online, _seconds(table, online), clients)

    def _arrange(
        self, table: TableFile, client: IntArray, step: IntArray, online: BoolArray, seconds: FloatArray, clients: int
    ) -> TraceModel:
        steps = int(step.max()) + 1
        if steps * clients > 20 * len(table) + 1000:
            raise InputError(f"{table.path}: {len(table)} rows leave most of {clients} clients x {steps} steps empty")
        line = np.full((steps, clients), -1, dtype=np.int64)
        order = np.arange(len(table))[::-1]  # reversed: of duplicate rows, the first is kept and the others are found
        line[step[order], client[order]] = order
        if (twice := line[step, client] != np.arange(len(table))).any():
            row = int(np.flatnonzero(twice)[0])
            raise InputError(
                f"{table.where(row, 'step')}: client {client[row]} has a second row for step {step[row]}; the first "
                f"one is row {table.first + line[step[row], client[row]]}"
            )
        if (gap := line < 0).any():
            line = self._held(table, line, gap)
        value, present = seconds[line], online[line]
        usable = np.where(np.isfinite(value), value, 0.0)
        counts = np.isfinite(value).sum(axis=0)
        if (never := counts == 0).any():
            who = int(np.flatnonzero(never)[0])
            raise InputError(f"{table.path}: client {who} has no seconds in any step, so nothing is known of its delay")
        mean = usable.sum(axis=0) / counts
        return TraceModel(np.where(np.isfinite(value), value, mean), present, compute_share=self.compute_share)

    def _held(self, table: TableFile, line: IntArray, gap: BoolArray) -> IntArray:
        if (nowhere := gap.all(axis=0)).any():
            who = int(np.flatnonzero(nowhere)[0])
            raise InputError(f"{table.path}, column 'client': client {who} has no row at all")
        if self.gaps == "error":
            step, client = (int(at) for at in np.argwhere(gap)[0])
            raise InputError(
                f"{table.path}, column 'step': client {client} has no row for step {step}; add it, or set "
                f'gaps = "hold" to repeat the value before it'
            )
        at = np.where(gap, -1, np.arange(line.shape[0])[:, None])
        before = np.maximum.accumulate(at, axis=0)
        first = np.argmax(~gap, axis=0)
        return np.asarray(np.take_along_axis(line, np.where(before < 0, first, before), axis=0))


def _seconds(table: TableFile, online: BoolArray) -> FloatArray:
    """Return the seconds; NaN if an absent client has none."""
    cells = table.columns["seconds"]
    blank = [not present and cell in ("", None) for cell, present in zip(cells, online, strict=True)]
    filled = ["1" if empty else cell for cell, empty in zip(cells, blank, strict=True)]
    values = TableFile(table.path, {"seconds": filled}, table.first).numbers("seconds", low=0.0, above=True)
    values[np.array(blank)] = np.nan
    return values


@dataclass(frozen=True)
class ArrayDelays:
    """Delays from an array; the fields describe the array. Created by `delays_from_array`."""

    name: ClassVar[str] = "own"

    clients: int
    rounds: int
    digest: str

    def build(self, clients: int, *, model_bytes: int, seed: int) -> DelayModel:
        """Return the delays; `clients` must match the array. After the last round, the delays repeat."""
        if check_clients(clients) != self.clients:
            raise InputError(f"delays came for {self.clients} clients, but there are {clients}: give one per client")
        # The step before the first round belongs to the warm-up; after the roll, the first row is used in the first
        # round.
        seconds = np.roll(cast("FloatArray", self.__dict__["seconds"]), 1, axis=0)
        return TraceModel(seconds, np.ones(seconds.shape, dtype=np.bool_))


def delays_from_array(seconds: Any) -> ArrayDelays:
    """Return delays from an array of seconds, with shape (clients,) or (rounds, clients)."""
    try:
        axes = np.ndim(seconds)
    except ValueError as cause:  # rows of different lengths
        raise InputError(f"delays must be numbers, one per client, or rounds x clients: {cause}") from cause
    found = np.atleast_2d(float_array(seconds, "delays", ndim=axes, finite=False))
    if found.ndim != 2 or found.size == 0 or not (np.isfinite(found) & (found > 0)).all():
        raise InputError(
            f"delays must be positive seconds, one per client, or rounds x clients, but an array of shape "
            f"{np.shape(seconds)} came{'' if found.size == 0 else f' with values from {found.min()} to {found.max()}'}"
        )
    digest = hashlib.sha256(np.ascontiguousarray(found).data).hexdigest()[:16]
    delays = ArrayDelays(found.shape[1], found.shape[0], digest)
    delays.__dict__["seconds"] = found
    return delays
