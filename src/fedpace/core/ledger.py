"""All that is known about each client, in one place.

Selectors keep nothing per client; they see the ledger through a View. A row is added when a client joins and removed
when it leaves, so rows are always dense and in order of joining.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace.core.checks import BoolArray, FloatArray, IntArray, float_array
from fedpace.core.errors import InputError
from fedpace.core.protocols import MomentStore
from fedpace.core.providers import delay_estimator, moment_store
from fedpace.core.types import ClientId, Need, Outcome

_COLUMNS: dict[str, tuple[Any, float]] = {
    "samples": (np.float64, math.nan),
    "delay": (np.float64, math.nan),
    "loss": (np.float64, math.nan),
    "loss_step": (np.int64, -1),
    "update_step": (np.int64, -1),
    "participations": (np.int64, 0),
    "recent_weight": (np.float64, 0.0),
    "failures": (np.int64, 0),
    "started": (np.int64, 0),
    "moment_step": (np.int64, -1),
    "asked": (np.bool_, False),
}
"""Per-client scalars: type, and the value that means "nothing known"."""

MEMORY = 0.5
"""What a round counts for against the next one in `recent_weight`."""
REMEMBERED = 256
"""Answers whose lateness is kept."""


class Ledger:
    """Roster and facts. Ids are the host's; rows are ours.

    Args:
        learn_delays: estimate delays from what is observed. False: only what the host gives counts.
        moments: an empty store to keep moments in, where not the usual one.
    """

    def __init__(self, *, learn_delays: bool = True, moments: MomentStore | None = None) -> None:
        """Start with nobody."""
        self.learn_delays = learn_delays
        self.ids: list[ClientId] = []
        self._row: dict[ClientId, int] = {}
        self.columns: dict[str, NDArray[Any]] = {name: np.zeros(0, dtype) for name, (dtype, _) in _COLUMNS.items()}
        self.labels: FloatArray | None = None
        self.updates: FloatArray | None = None
        self.moments: MomentStore = moment_store() if moments is None else moments
        self.lateness: FloatArray = np.zeros((0, 2))
        self._estimator = delay_estimator()
        self._estimates = self._estimator.init(0)

    def __len__(self) -> int:
        """Clients in the roster."""
        return len(self.ids)

    def __contains__(self, client: ClientId) -> bool:
        """Whether `client` is in the roster."""
        return client in self._row

    def row(self, client: ClientId) -> int:
        """Return the row of `client`."""
        try:
            return self._row[client]
        except (KeyError, TypeError):
            raise InputError(
                f"client {client!r} is not in the roster of {len(self)} clients: let it join first"
            ) from None

    def rows(self, clients: Iterable[ClientId]) -> IntArray:
        """Return the rows of `clients`, in their order; for a whole roster much faster than one by one."""
        wanted = list(clients)
        try:
            return np.fromiter(map(self._row.__getitem__, wanted), dtype=np.int64, count=len(wanted))
        except (KeyError, TypeError):
            return np.array([self.row(client) for client in wanted], dtype=np.int64)  # says who it is

    def ids_of(self, rows: IntArray) -> list[ClientId]:
        """Return the ids of `rows`."""
        return [self.ids[row] for row in rows.tolist()]

    def name(self, row: int) -> str:
        """Name a row as errors do."""
        return f"client {self.ids[row]!r}"

    # -- joining and leaving ---------------------------------------------------------------------------------

    def join(self, clients: Sequence[ClientId]) -> IntArray:
        """Add clients and return their rows; one that is there already is an error."""
        first = len(self)
        seen: set[ClientId] = set()
        for client in clients:
            try:
                known = client in self._row or client in seen
            except TypeError as cause:
                raise InputError(f"a client id must be hashable, but {client!r} is not") from cause
            if known:
                raise InputError(f"client {client!r} is in the roster already: ids must be unique")
            seen.add(client)
        self.ids.extend(clients)
        self._row.update({client: first + offset for offset, client in enumerate(clients)})
        for name, (dtype, nothing) in _COLUMNS.items():
            added = np.full(len(clients), nothing, dtype)
            self.columns[name] = np.concatenate([self.columns[name], added])
        self.labels = _grown(self.labels, len(clients))
        self.updates = _grown(self.updates, len(clients))
        self.moments.append(len(clients))
        self._estimates = self._estimates.append(len(clients))
        return np.arange(first, len(self))

    def leave(self, clients: Iterable[ClientId]) -> None:
        """Forget clients; the rows of those behind them move up."""
        rows = np.unique(np.array([self.row(client) for client in clients], dtype=np.int64))
        if rows.size == 0:
            return
        gone = set(rows.tolist())
        self.ids = [client for row, client in enumerate(self.ids) if row not in gone]
        self._row = {client: row for row, client in enumerate(self.ids)}
        self.columns = {name: np.delete(column, rows) for name, column in self.columns.items()}
        self.labels = None if self.labels is None else np.delete(self.labels, rows, axis=0)
        self.updates = None if self.updates is None else np.delete(self.updates, rows, axis=0)
        self.moments.remove(rows)
        self._estimates = self._estimates.remove(rows)

    # -- facts -----------------------------------------------------------------------------------------------

    def set_samples(self, row: int, samples: float) -> None:
        """Record how many samples a client holds."""
        self.columns["samples"][row] = self._valid_samples(row, samples)

    def set_delays(self, rows: IntArray, seconds: Sequence[float]) -> None:
        """Record delays that the host knows beforehand; where delays are learnt, they are the first observations."""
        values = [self._valid_seconds(row, float(value)) for row, value in zip(rows.tolist(), seconds, strict=True)]
        if self.learn_delays:
            self._learn_delays(rows.tolist(), values, [True] * len(values), 0)
        else:
            self.columns["delay"][rows] = values

    def set_labels(self, rows: IntArray, histograms: ArrayLike) -> None:
        """Record clients' label histograms, all or none of them."""
        table = float_array(histograms, "label histograms", ndim=2, finite=False)
        width = None if self.labels is None else self.labels.shape[1]
        for row, values in zip(rows.tolist(), table, strict=True):
            what = f"the label histogram of {self.name(row)}"
            if not (np.isfinite(values) & (values >= 0)).all():
                raise InputError(f"{what} must hold counts of at least 0, but {values.tolist()} came")
            width = _same_width(width, values.size, what, "entries")
        for row, values in zip(rows.tolist(), table, strict=True):
            self.labels = self._put_wide(self.labels, row, values)

    def set_updates(self, sketches: Mapping[int, ArrayLike], step: int) -> None:
        """Record the sketches of updates or gradients at the model of `step`, by row: all or none of them."""
        width = None if self.updates is None else self.updates.shape[1]
        tables: dict[int, FloatArray] = {}
        for row, sketch in sketches.items():
            what = f"the update sketch of {self.name(row)}"
            tables[row] = float_array(sketch, what)
            width = _same_width(width, tables[row].size, what, "entries")
        for row, values in tables.items():
            self.updates = self._put_wide(self.updates, row, values)
            self.columns["update_step"][row] = step

    def check(self, outcomes: Sequence[Outcome]) -> None:
        """Refuse reports that cannot be folded, before any of them changes anything."""
        moment_width = self.moments.width
        update_width = None if self.updates is None else self.updates.shape[1]
        for outcome in outcomes:
            row = self.row(outcome.client)
            who = self.name(row)
            for what in ("seconds", "loss", "samples"):
                _number(getattr(outcome, what), f"the {what} of {who}")
            if not math.isnan(outcome.seconds):
                self._valid_seconds(row, outcome.seconds)
            elif outcome.finished and self.learn_delays:
                raise InputError(f"{who} finished, but its delay is missing: report the seconds that it took")
            if math.isinf(outcome.loss):
                raise InputError(f"the loss of {who} must be finite, but it is {outcome.loss}: training diverged")
            if not math.isnan(outcome.samples):
                self._valid_samples(row, outcome.samples)
            if outcome.moment is not None:
                factor = float_array(outcome.moment, f"the moment factor of {who}", ndim=2)
                if factor.shape[1] == 0:
                    raise InputError(f"the moment factor of {who} has no columns: its shape is {factor.shape}")
                moment_width = _same_width(moment_width, factor.shape[1], f"the moment of {who}", "features")
            if outcome.update is not None:
                sketch = float_array(outcome.update, f"the update sketch of {who}")
                update_width = _same_width(update_width, sketch.size, f"the update sketch of {who}", "entries")

    def fold(self, outcomes: Sequence[Outcome], step: int) -> None:
        """Take in what clients reported at `step`; `check` has been passed."""
        rows = [self.row(outcome.client) for outcome in outcomes]
        for row, outcome in zip(rows, outcomes, strict=True):
            self._fold_facts(row, outcome, step)
        self._remember_lateness(rows, outcomes)
        if self.learn_delays:
            self._learn_delays(rows, [o.seconds for o in outcomes], [o.finished for o in outcomes], step)

    def _fold_facts(self, row: int, outcome: Outcome, step: int) -> None:
        column = self.columns
        column["asked"][row] = True
        if outcome.moment is not None:
            self.moments.put(row, np.asarray(outcome.moment, dtype=np.float64))
            column["moment_step"][row] = step
        if outcome.update is not None:
            self.set_updates({row: outcome.update}, step)
        if not math.isnan(outcome.samples):
            column["samples"][row] = outcome.samples
        if not math.isnan(outcome.loss):
            self.set_losses({row: outcome.loss}, step)
        column["participations" if outcome.finished else "failures"][row] += 1

    def _remember_lateness(self, rows: list[int], outcomes: Sequence[Outcome]) -> None:
        """Compare what clients took with what was expected of them, before expectations change."""
        expected = self.columns["delay"][rows]
        seconds = np.array([outcome.seconds for outcome in outcomes], dtype=np.float64)
        given_up = np.array([not outcome.finished for outcome in outcomes], dtype=np.float64)
        told = (expected > 0) & (seconds > 0)  # not where one is NaN
        new = np.column_stack([seconds[told] / expected[told], given_up[told]])
        self.lateness = np.concatenate([self.lateness, new])[-REMEMBERED:]

    def remember_weights(self, weighted: Sequence[tuple[float, Outcome]]) -> None:
        """Fold a step's weights, as the aggregate had them: who failed left its weight to the others."""
        finished = [(self.row(outcome.client), weight) for weight, outcome in weighted if outcome.finished]
        recent, total = self.columns["recent_weight"], sum(weight for _, weight in finished)
        for row, weight in finished:
            recent[row] += weight / total if total > 0 else 0.0
        recent *= MEMORY

    def set_losses(self, losses: Mapping[int, float], step: int) -> None:
        """Record losses at the model of `step`, by row: all or none of them."""
        for row, loss in losses.items():
            what = f"the loss of {self.name(row)}"
            _number(loss, what)
            if not math.isfinite(loss):
                raise InputError(f"{what} must be finite, but it is {loss}")
        for row, loss in losses.items():
            self.columns["loss"][row] = loss
            self.columns["loss_step"][row] = step

    def _learn_delays(self, rows: list[int], seconds: list[float], finished: list[bool], step: int) -> None:
        self._estimates = self._estimator.fold(self._estimates, rows, seconds, finished, step=step)
        seen = self._estimates.seen
        self.columns["delay"][seen] = self._estimator.seconds(self._estimates)[seen]

    def facts(self) -> dict[str, Any]:
        """Return what a View shows of the clients."""
        column = self.columns
        return {
            "delay": column["delay"],
            "loss": column["loss"],
            "loss_step": column["loss_step"],
            "participations": column["participations"],
            "samples": column["samples"],
            "labels": self.labels,
            "updates": self.updates,
            "update_step": None if self.updates is None else column["update_step"],
            "recent_weight": column["recent_weight"],
            "lateness": self.lateness,
            "moments": self.moments if self.moments.known.any() else None,
        }

    def known(self, needs: frozenset[Need]) -> BoolArray:
        """(n,) True where everything in `needs` is known of the client."""
        known = np.ones(len(self), dtype=np.bool_)
        if Need.DELAY in needs:
            known &= ~np.isnan(self.columns["delay"])
        if Need.LOSS in needs:
            known &= ~np.isnan(self.columns["loss"])
        if Need.LABELS in needs:
            known &= _filled(self.labels, len(self))
        if Need.UPDATE in needs:
            known &= _filled(self.updates, len(self))
        if Need.MOMENT in needs or Need.TARGETS in needs:
            known &= self.moments.known
        return known

    def _valid_seconds(self, row: int, seconds: float) -> float:
        if not (math.isfinite(seconds) and seconds >= 0):
            raise InputError(
                f"the delay of {self.name(row)} must be a finite number of seconds, at least 0, but it is {seconds}"
            )
        return float(seconds)

    def _valid_samples(self, row: int, samples: float) -> float:
        if not (math.isfinite(samples) and samples >= 0):
            raise InputError(f"the samples of {self.name(row)} must be a count of at least 0, but {samples} came")
        return float(samples)

    def _put_wide(self, table: FloatArray | None, row: int, values: FloatArray) -> FloatArray:
        if table is None:
            table = np.full((len(self), values.size), math.nan)
        table[row] = values
        return table

    # -- saving ----------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything but the ids."""
        saved: dict[str, NDArray[Any]] = {**self.columns, "lateness": self.lateness}
        if self.labels is not None:
            saved["labels"] = self.labels
        if self.updates is not None:
            saved["updates"] = self.updates
        saved.update({f"moments/{name}": array for name, array in self.moments.arrays().items()})
        saved.update({f"delays/{name}": array for name, array in self._estimates.arrays().items()})
        return saved

    @classmethod
    def from_arrays(
        cls,
        ids: Sequence[ClientId],
        arrays: Mapping[str, NDArray[Any]],
        *,
        learn_delays: bool,
        moments: MomentStore | None = None,
    ) -> Ledger:
        """Rebuild a ledger from `ids` and what `arrays` gave; `moments` as for a new one."""
        ledger = cls(learn_delays=learn_delays, moments=moments)
        ledger.join(ids)
        for name in _COLUMNS:
            column = arrays.get(name)
            if column is None or column.shape != (len(ids),):
                raise InputError(f"the saved ledger should hold {len(ids)} entries of {name!r}, but it does not")
            ledger.columns[name] = column.copy()
        ledger.lateness = arrays.get("lateness", ledger.lateness)
        if ledger.lateness.shape[1:] != (2,):
            raise InputError(f"the saved ledger should hold pairs of lateness, not shape {ledger.lateness.shape}")
        ledger.labels = arrays.get("labels")
        ledger.updates = arrays.get("updates")
        ledger.moments.load(_below("moments/", arrays))
        try:
            ledger._estimates = ledger._estimator.load(_below("delays/", arrays))
        except KeyError as cause:
            raise InputError(f"the saved ledger lacks the delay estimates' {cause}") from cause
        per_client = {name: (table, 2) for name, table in arrays.items() if name in ("labels", "updates")}
        per_client["moments"] = (ledger.moments.known, 1)
        per_client |= {f"delays/{n}": (array, 1) for n, array in ledger._estimates.arrays().items() if array.ndim}
        for name, (table, ndim) in per_client.items():
            if table.ndim != ndim or len(table) != len(ids):
                raise InputError(f"the saved ledger should hold {len(ids)} rows of {name}, not shape {table.shape}")
        return ledger


def _below(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _grown(table: FloatArray | None, count: int) -> FloatArray | None:
    if table is None:
        return None
    return np.concatenate([table, np.full((count, table.shape[1]), math.nan)])


def _filled(table: FloatArray | None, count: int) -> BoolArray:
    if table is None:
        return np.zeros(count, dtype=np.bool_)
    return np.asarray(~np.isnan(table).any(axis=1), dtype=np.bool_)


def _number(value: Any, what: str) -> None:
    try:
        float(value)
    except (TypeError, ValueError) as cause:
        raise InputError(f"{what} must be a number, or NaN where it is unknown, but {value!r} came") from cause


def _same_width(expected: int | None, came: int, what: str, unit: str) -> int:
    if expected is not None and came != expected:
        raise InputError(
            f"{what} has {came} {unit}, but those of other clients have {expected}: all clients of a session must "
            "report the same width"
        )
    return came
