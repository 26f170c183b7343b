"""`trace`: measured delays from a file with columns client, step, seconds and optionally available.

Clients and steps are numbered from 0, and every client needs a row for every step. A gap is an error, unless `gaps =
"hold"`: then the client's previous value fills it (or the first later one). After the last step, the trace starts
again, so that `expected()`, the mean over the steps, is the mean of a long run.

If `available` is 0, seconds may be empty. Such a round gets the client's mean, so that a scheme that asks an absent
client still gets a number; `available(step)` shows who was there. Ours, not the paper's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from fedpace._base.checks import BoolArray, FloatArray, IntArray, frozen, one_of
from fedpace._base.errors import InputError
from fedpace.core.types import DelayModel
from fedpace.delays.base import count_of, size_of, step_of
from fedpace.delays.tables import Table, read_table

Gaps = Literal["error", "hold"]


class TraceModel:
    """Measured delays and availability: both a DelayModel and an AvailabilityModel."""

    def __init__(self, seconds: FloatArray, available: BoolArray) -> None:
        """Store (steps, clients) tables."""
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
        row: FloatArray = self._seconds[step_of(step) % self.steps]
        return row

    def available(self, step: int) -> BoolArray:
        """(n,) True for clients that were available in round `step`."""
        row: BoolArray = self._available[step_of(step) % self.steps]
        return row

    def crashes(self, step: int) -> BoolArray:
        """(n,) always False: a trace records absences, not crashes."""
        step_of(step)
        return frozen(np.zeros(self._mean.size), np.bool_)


@dataclass(frozen=True)
class TraceDelays:
    """Delays from a CSV or parquet file."""

    name: ClassVar[str] = "trace"

    file: str = ""
    """Path of the file."""
    gaps: Gaps = "error"
    """What to do if a client has no row for a step: `error`, or `hold` to repeat its previous value."""

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        one_of(self.gaps, get_args(Gaps), "gaps")
        if not isinstance(self.file, str):
            raise InputError(f"file must be the path of a CSV or parquet file, but {self.file!r} came")

    def build(self, clients: int, *, model_bytes: int, seed: int) -> DelayModel:
        """Return the delays of the file, which must contain exactly `clients` clients."""
        return self.read(clients, model_bytes=model_bytes)

    def read(self, clients: int, *, model_bytes: int = 0) -> TraceModel:
        """Return the trace, which also contains the availability."""
        clients = count_of(clients)
        size_of(model_bytes)
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
        self, table: Table, client: IntArray, step: IntArray, online: BoolArray, seconds: FloatArray, clients: int
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
        return TraceModel(np.where(np.isfinite(value), value, mean), present)

    def _held(self, table: Table, line: IntArray, gap: BoolArray) -> IntArray:
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


def _seconds(table: Table, online: BoolArray) -> FloatArray:
    """Return the seconds; NaN if an absent client has none."""
    cells = table.columns["seconds"]
    blank = [not present and cell in ("", None) for cell, present in zip(cells, online, strict=True)]
    filled = ["1" if empty else cell for cell, empty in zip(cells, blank, strict=True)]
    values = Table(table.path, {"seconds": filled}, table.first).numbers("seconds", low=0.0, above=True)
    values[np.array(blank)] = np.nan
    return values
