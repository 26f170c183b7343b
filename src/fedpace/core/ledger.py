"""The ledger: every fact that the server knows about each client.

Selectors store nothing per client; they read the ledger through a View. A client gets a row when it joins and loses it
when it leaves, so rows have no gaps and are in order of joining. `facts.py` declares which facts there are.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace._base.checks import BoolArray, FloatArray, IntArray, float_array, listed
from fedpace._base.errors import InputError
from fedpace._base.names import shown
from fedpace.core.accumulators import Accumulated, Accumulator, Settled
from fedpace.core.facts import FACTS, REPORTED, WIDE, Fact, filled, grown, ordinary, valid_seconds
from fedpace.core.folding import check_outcomes, clipped_sketches, fold_moments
from fedpace.core.ids import check_id
from fedpace.core.messages import ClientId, Need, Outcome
from fedpace.core.protocols import MomentStore
from fedpace.core.providers import delay_estimator, moment_store
from fedpace.trust.bounds import Trust
from fedpace.trust.limits import CLIP, WEIGHT_RATE


class Ledger:
    """The facts about all clients. Hosts name a client by its id; fedpace uses its row.

    Args:
        learn_delays: estimate delays from observed times. False = use only the delays that the host gives.
        moments: an empty store for feature moments; None = the default store.
        accumulators: values that the scheme wants the ledger to keep beside the facts.
        trust: bound the influence of each client (`fedpace.trust`).
        clip: see `Settings.clip`.
        weight_rate: see `Settings.weight_rate`.
    """

    def __init__(
        self,
        *,
        learn_delays: bool = True,
        moments: MomentStore | None = None,
        accumulators: Sequence[Accumulator] = (),
        trust: bool = True,
        clip: float = CLIP,
        weight_rate: float = WEIGHT_RATE,
    ) -> None:
        self.trust = Trust(on=trust, clip=clip, rate=weight_rate)
        self.learn_delays = learn_delays
        self.ids: list[ClientId] = []
        self._row: dict[ClientId, int] = {}
        self.columns: dict[str, NDArray[Any]] = {name: np.zeros(0, fact.dtype) for name, fact in FACTS.items()}
        self.tables: dict[str, FloatArray] = {}
        """Name -> (n, width) table of each wide fact that at least one client has reported."""
        self.moments: MomentStore = moment_store() if moments is None else moments
        self.no_moments = deepcopy(self.moments)
        self.accumulated = Accumulated(accumulators)
        self._estimator = delay_estimator()
        self._estimates = self._estimator.init(0)

    def __len__(self) -> int:
        """Number of clients."""
        return len(self.ids)

    def __contains__(self, client: ClientId) -> bool:
        """Whether the client has joined and not left."""
        return client in self._row

    def row(self, client: ClientId) -> int:
        """Return the row of `client`."""
        try:
            return self._row[client]
        except (KeyError, TypeError):
            raise InputError(
                f"client {shown(client)} is not in the roster of {len(self)} clients: let it join first"
            ) from None

    def rows(self, clients: Iterable[ClientId]) -> IntArray:
        """Return the rows of `clients`, in their order; much faster than `row` in a loop."""
        wanted = list(clients)
        try:
            return np.fromiter(map(self._row.__getitem__, wanted), dtype=np.int64, count=len(wanted))
        except (KeyError, TypeError):
            return np.array([self.row(client) for client in wanted], dtype=np.int64)  # the error names the client

    def ids_of(self, rows: IntArray) -> list[ClientId]:
        """Return the host's ids of these rows."""
        return [self.ids[row] for row in rows.tolist()]

    def name(self, row: int) -> str:
        """Return the name of a row's client for error messages."""
        return f"client {shown(self.ids[row])}"

    # -- joining and leaving ---------------------------------------------------------------------------------

    def join(self, clients: Sequence[ClientId]) -> IntArray:
        """Add clients and return their rows; raise InputError if an id is already in use."""
        first = len(self)
        seen: set[ClientId] = set()
        for client in clients:
            try:
                known = client in self._row or client in seen
            except TypeError as cause:
                raise InputError(f"a client id must be hashable, but {shown(client)} is not") from cause
            if known:
                raise InputError(f"client {shown(client)} is in the roster already: ids must be unique")
            check_id(client)
            seen.add(client)
        self.ids.extend(clients)
        self._row.update({client: first + offset for offset, client in enumerate(clients)})
        for name, fact in FACTS.items():
            added = np.full(len(clients), fact.empty, fact.dtype)
            self.columns[name] = np.concatenate([self.columns[name], added])
        self.tables = {name: grown(table, len(clients)) for name, table in self.tables.items()}
        self.moments.append(len(clients))
        self.accumulated.append(len(clients))
        self.trust.append(len(clients))
        self._estimates = self._estimates.append(len(clients))
        return np.arange(first, len(self))

    def leave(self, clients: Iterable[ClientId]) -> None:
        """Remove clients; the rows of later clients move up."""
        rows = np.unique(self.rows(listed(clients, "clients")))
        gone = set(rows.tolist())
        self.ids = [client for row, client in enumerate(self.ids) if row not in gone]
        self._row = {client: row for row, client in enumerate(self.ids)}
        self.columns = {name: np.delete(column, rows) for name, column in self.columns.items()}
        self.tables = {name: np.delete(table, rows, axis=0) for name, table in self.tables.items()}
        self.moments.remove(rows)
        self.accumulated.remove(rows)
        self.trust.remove(rows)
        self._estimates = self._estimates.remove(rows)

    # -- facts -----------------------------------------------------------------------------------------------

    def set_samples(self, row: int, samples: float) -> None:
        """Store how many samples a client holds."""
        FACTS["samples"].check(samples, self.name(row), required=True)
        self.columns["samples"][row] = samples

    def set_delays(self, rows: IntArray, seconds: Sequence[float]) -> None:
        """Store delays that the host knows beforehand; with `learn_delays` they are the first observations."""
        values = [valid_seconds(value, self.name(row)) for row, value in zip(rows.tolist(), seconds, strict=True)]
        if self.learn_delays:
            self._learn_delays(rows.tolist(), values, [True] * len(values), 0)
        else:
            self.columns["delay"][rows] = values

    def set_labels(self, rows: IntArray, histograms: ArrayLike) -> None:
        """Store label histograms; one invalid histogram rejects them all."""
        table = float_array(histograms, "label histograms", ndim=2, finite=False)
        self._set_wide("labels", dict(zip(rows.tolist(), table, strict=True)))

    def set_updates(self, sketches: Mapping[int, ArrayLike], step: int) -> None:
        """Store row -> sketch of an update or gradient at model version `step`; one invalid sketch rejects them all."""
        self._set_wide("updates", sketches, step)

    def _set_wide(self, name: str, vectors: Mapping[int, ArrayLike], step: int = -1) -> None:
        fact, width = WIDE[name], self.width(name)
        checked: dict[int, FloatArray] = {}
        for row, vector in vectors.items():
            checked[row] = fact.check(vector, self.name(row), width)
            width = checked[row].size
        for row, values in checked.items():
            if name not in self.tables:
                self.tables[name] = np.full((len(self), values.size), math.nan)
            self.tables[name][row] = values
            if fact.stamp:
                self.columns[fact.stamp][row] = step

    def width(self, name: str) -> int | None:
        """Return the width of a wide fact; None while no client has reported it."""
        return self.tables[name].shape[1] if name in self.tables else None

    def set_losses(self, losses: Mapping[int, float], step: int) -> None:
        """Store row -> loss at model version `step`; one invalid loss rejects them all."""
        for row, loss in losses.items():
            FACTS["loss"].check(loss, self.name(row), required=True)
        self._note(FACTS["loss"], np.array(list(losses), np.int64), np.array(list(losses.values())), step)

    def _note(self, fact: Fact, rows: IntArray, values: FloatArray, step: int) -> None:
        self.columns[fact.name][rows] = values
        if fact.stamp:
            self.columns[fact.stamp][rows] = step

    def check(self, outcomes: Sequence[Outcome], moment: int | None = None, update: int | None = None) -> None:
        """Raise InputError for invalid reports, and change nothing; call it before `fold`.

        Args:
            outcomes: the reports.
            moment: width that moments must have if the ledger knows none; None = any common width.
            update: the same for update sketches.
        """
        rows = self.rows(outcome.client for outcome in outcomes).tolist()
        widths = self.moments.width or moment, self.width("updates") or update
        check_outcomes(outcomes, lambda place: self.name(rows[place]), *widths, learn_delays=self.learn_delays)

    def fold(self, outcomes: Sequence[Outcome], step: int, lag: int = 0, bounded: Collection[ClientId] = ()) -> None:
        """Store the facts of reports that `check` has accepted.

        Args:
            outcomes: the reports.
            step: version of the model that these clients trained from.
            lag: staleness: steps made since that version.
            bounded: clients with updates that `Coordinator.bound` has clipped; their sketches are not clipped again.
        """
        at = self.rows(outcome.client for outcome in outcomes)
        rows: list[int] = at.tolist()
        outcomes = clipped_sketches(self.trust, rows, outcomes, bounded, step + lag)
        done = np.array([outcome.finished for outcome in outcomes], np.bool_)
        self._fold_facts(at, done, outcomes, step)
        moments = {row: o.moment for row, o in zip(rows, outcomes, strict=True) if o.moment is not None}
        self.columns["moment_step"][list(moments)] = step
        fold_moments(self.trust, self.moments, moments)
        took = np.array([ordinary(self.trust.seconds(outcome.seconds, outcome.measured)) for outcome in outcomes])
        if self.trust.on and not self.learn_delays:
            self.trust.compare_delays(at, self.columns["delay"][at], took, done)
        # Accumulators compare with the delays expected before this answer, so they come first.
        self.accumulated.answered(Settled(at, self.delays()[rows], took, done, lag))
        if self.learn_delays:
            self._learn_delays(rows, took.tolist(), done.tolist(), step)

    def delays(self) -> FloatArray:
        """(n,) estimated seconds per round, corrected for false claims; NaN = unknown."""
        return np.asarray(self.columns["delay"] * (1.0 if self.learn_delays else self.trust.slowdown()))

    def _fold_facts(self, rows: IntArray, finished: BoolArray, outcomes: Sequence[Outcome], step: int) -> None:
        self.columns["asked"][rows] = True
        sketches = {row: o.update for row, o in zip(rows.tolist(), outcomes, strict=True) if o.update is not None}
        self.set_updates(sketches, step)
        for fact in REPORTED:
            values = np.array([getattr(outcome, fact.name) for outcome in outcomes], dtype=np.float64)
            told = ~np.isnan(values)
            self._note(fact, rows[told], values[told], step)
        np.add.at(self.columns["participations"], rows[finished], 1)
        np.add.at(self.columns["failures"], rows[~finished], 1)

    def fold_weights(self, weighted: Sequence[tuple[float, Outcome]]) -> None:
        """Pass the weights of a step to the accumulators; the weights of clients that finished are scaled to sum 1."""
        finished = [(self.row(outcome.client), weight) for weight, outcome in weighted if outcome.finished]
        total = sum(weight for _, weight in finished)
        weights = [weight / total if total > 0 else 0.0 for _, weight in finished]
        self.accumulated.stepped(np.array([row for row, _ in finished], dtype=np.int64), np.array(weights))

    def _learn_delays(self, rows: list[int], seconds: list[float], finished: list[bool], step: int) -> None:
        self._estimates = self._estimator.fold(self._estimates, rows, seconds, finished, step=step)
        seen = self._estimates.seen
        self.columns["delay"][seen] = self._estimator.seconds(self._estimates)[seen]

    def facts(self) -> dict[str, Any]:
        """Return the facts that a View shows, by field name."""
        stamps = {fact.stamp: name for name, fact in WIDE.items() if fact.stamp}
        shown = {name: self.columns[name] for name, fact in FACTS.items() if fact.shown}
        return {
            **{name: values for name, values in shown.items() if name not in stamps or stamps[name] in self.tables},
            **self.tables,
            "delay": self.delays(),
            "moments": self.moments if self.moments.known.any() else None,
            "accumulated": self.accumulated.values,
        }

    def known(self, needs: frozenset[Need]) -> BoolArray:
        """(n,) True for clients with all facts in `needs` known."""
        known = np.ones(len(self), dtype=np.bool_)
        for name, fact in FACTS.items():
            if fact.need in needs:
                known &= ~np.isnan(self.columns[name])
        for name, wide in WIDE.items():
            if wide.need in needs:
                known &= filled(self.tables.get(name), len(self))
        if Need.MOMENT in needs or Need.TARGETS in needs:
            known &= self.moments.known
        return known

    # -- saving ----------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays to save, by name; everything except the client ids."""
        saved: dict[str, NDArray[Any]] = self.columns | self.tables
        saved.update({f"moments/{name}": array for name, array in self.moments.arrays().items()})
        saved.update({f"delays/{name}": array for name, array in self._estimates.arrays().items()})
        saved.update({f"accumulated/{name}": values for name, values in self.accumulated.values.items()})
        saved.update({f"trust/{name}": values for name, values in self.trust.arrays().items()})
        return saved

    def load(self, ids: Sequence[ClientId], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore an empty ledger from the client ids and the result of `arrays`."""
        self.join(ids)
        for name in FACTS:
            column = arrays.get(name)
            if column is None or column.shape != (len(ids),):
                raise InputError(f"the saved ledger should hold {len(ids)} entries of {name!r}, but it does not")
            self.columns[name] = column.copy()
        self.tables = {name: arrays[name] for name in WIDE if name in arrays}
        self.moments.load(_below("moments/", arrays))
        self.accumulated.load(_below("accumulated/", arrays), len(ids))
        self.trust.load(_below("trust/", arrays), len(ids))
        try:
            self._estimates = self._estimator.load(_below("delays/", arrays))
        except KeyError as cause:
            raise InputError(f"the saved ledger lacks the delay estimates' {cause}") from cause
        per_client: dict[str, tuple[Any, int]] = {name: (table, 2) for name, table in self.tables.items()}
        per_client["moments"] = (self.moments.known, 1)
        per_client |= {f"delays/{n}": (array, 1) for n, array in self._estimates.arrays().items() if array.ndim}
        for name, (table, ndim) in per_client.items():
            if table.ndim != ndim or len(table) != len(ids):
                raise InputError(f"the saved ledger should hold {len(ids)} rows of {name}, not shape {table.shape}")


def _below(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
