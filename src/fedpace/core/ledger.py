"""The ledger: every fact that the server knows about each client.

Selectors store nothing per client; they read the ledger through a View. A client gets a row when it joins and loses it
when it leaves, so rows have no gaps and are in order of joining. `facts.py` declares which facts there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace._base.checks import (
    BoolArray,
    FloatArray,
    IntArray,
    float_array,
    listed,
    shares,
    shown,
)
from fedpace._base.codec import ClientId, check_id
from fedpace._base.errors import FedpaceError, InputError
from fedpace.core.delay_estimator import DelayEstimator, Estimates
from fedpace.core.facts import FACTS, REPORTED, WIDE, Fact, check_outcomes, ordinary, valid_seconds
from fedpace.core.settings import ShareRule
from fedpace.core.types import ASSUMED_COMPUTE, Accumulator, Need, Outcome, Settled
from fedpace.moments.bank import MomentBank
from fedpace.moments.store import MomentStore
from fedpace.trust.bounds import SKETCH, Trust
from fedpace.trust.limits import CLIP, WEIGHT_RATE


def grown(table: FloatArray, count: int) -> FloatArray:
    """Return the table with `count` rows of NaN added, for clients that joined."""
    return np.concatenate([table, np.full((count, table.shape[1]), math.nan)])


def filled(table: FloatArray | None, count: int) -> BoolArray:
    """(n,) True for rows of a wide fact's table without NaN; all False if there is no table."""
    if table is None:
        return np.zeros(count, dtype=np.bool_)
    return np.asarray(~np.isnan(table).any(axis=1), dtype=np.bool_)


class Ledger:
    """The facts about all clients. Hosts name a client by its id; fedpace uses its row.

    Args:
        learn_delays: estimate delays from observed times. False = use only the delays that the host gives.
        moments: an empty store for feature moments; None = the default store.
        accumulators: values that the scheme wants the ledger to keep beside the facts.
        trust: bound the influence of each client (`fedpace.trust`).
        clip: see `Settings.clip`.
        weight_rate: see `Settings.weight_rate`.
        share_rule: see `Settings.shares`.
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
        share_rule: ShareRule = "uniform",
        stamp_answers: bool = False,
    ) -> None:
        self.trust = Trust(on=trust, clip=clip, rate=weight_rate)
        self.learn_delays = learn_delays
        self._share_rule = share_rule
        self._stamp_answers = stamp_answers
        """Whether `update_step` follows all answers, for hosts without update sketches."""
        self.ids: list[ClientId] = []
        self._row: dict[ClientId, int] = {}
        self.columns: dict[str, NDArray[Any]] = {name: np.zeros(0, fact.dtype) for name, fact in FACTS.items()}
        self.tables: dict[str, FloatArray] = {}
        """Name -> (n, width) table of each wide fact that at least one client has reported."""
        self.moments: MomentStore = MomentBank() if moments is None else moments
        self.no_moments = deepcopy(self.moments)
        self.accumulated = Accumulated(accumulators)
        self._estimator = DelayEstimator()
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

    def join(
        self,
        clients: Sequence[ClientId],
        *,
        samples: Sequence[float] | None = None,
        delays: Sequence[float] | FloatArray | None = None,
        compute: Sequence[float] | FloatArray | None = None,
        labels: ArrayLike | None = None,
    ) -> IntArray:
        """Add clients with their facts, and return their rows; one invalid value rejects them all.

        The arguments are those of `Coordinator.join`.
        """
        for what, given in (("samples", samples), ("delays", delays), ("compute", compute), ("labels", labels)):
            if given is not None and (count := len(listed(given, what))) != len(clients):  # type: ignore[arg-type]
                raise InputError(f"{len(clients)} clients join with {count} {what}: give one for each")
        counts = None if samples is None else float_array(samples, "samples", finite=False)
        seconds = None if delays is None else float_array(delays, "delays", finite=False)
        growing = None if compute is None else float_array(compute, "compute", finite=False)
        if growing is not None and seconds is None:
            raise InputError("compute is the part of delays that grows with the work: give delays too")
        rows = self._add(clients)
        try:
            if counts is not None:
                for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
                    self.set_samples(row, count)
            if labels is not None:
                self.set_labels(rows, labels)
            # Last: the delay estimator cannot unlearn a client that is then refused.
            if seconds is not None:
                self.set_delays(rows, seconds.tolist(), None if growing is None else growing.tolist())
        except FedpaceError:
            self.leave(clients)
            raise
        return rows

    def _add(self, clients: Sequence[ClientId]) -> IntArray:
        """Add clients without facts; raise InputError if an id is already in use."""
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
        self.trust.append(clients)
        self._estimates = self._estimates.append(len(clients))
        return np.arange(first, len(self))

    def leave(self, clients: Iterable[ClientId]) -> None:
        """Remove clients; the rows of later clients move up."""
        rows = np.unique(self.rows(listed(clients, "clients")))
        gone = set(rows.tolist())
        self.trust.remove(rows, self.ids_of(rows))
        self.ids = [client for row, client in enumerate(self.ids) if row not in gone]
        self._row = {client: row for row, client in enumerate(self.ids)}
        self.columns = {name: np.delete(column, rows) for name, column in self.columns.items()}
        self.tables = {name: np.delete(table, rows, axis=0) for name, table in self.tables.items()}
        self.moments.remove(rows)
        self.accumulated.remove(rows)
        self._estimates = self._estimates.remove(rows)

    # -- facts -----------------------------------------------------------------------------------------------

    def set_samples(self, row: int, samples: float) -> None:
        """Store how many samples a client holds."""
        FACTS["samples"].check(samples, self.name(row), required=True)
        self.columns["samples"][row] = samples

    def set_delays(self, rows: IntArray, seconds: Sequence[float], compute: Sequence[float] | None = None) -> None:
        """Store delays that the host knows beforehand; with `learn_delays` they are the first observations.

        Args:
            rows: of the clients.
            seconds: of a task with work 1.
            compute: the part of `seconds` that grows with the work; None = unknown.
        """
        values = [valid_seconds(value, self.name(row)) for row, value in zip(rows.tolist(), seconds, strict=True)]
        growing = [math.nan] * len(values)
        if compute is not None:
            growing = [
                value if math.isnan(value) else valid_seconds(value, self.name(row))
                for row, value in zip(rows.tolist(), compute, strict=True)
            ]
            for row, part, total in zip(rows.tolist(), growing, values, strict=True):
                if part > total * (1 + 1e-9):
                    raise InputError(
                        f"the compute of {self.name(row)} is part of its delay, but {part:g} of {total:g} s came"
                    )
        if self.learn_delays:
            if compute is not None:
                shares = [part / total if total > 0 else math.nan for part, total in zip(growing, values, strict=True)]
                self._estimates = self._estimator.with_shares(self._estimates, rows, shares)
            self._learn_delays(rows.tolist(), values, [True] * len(values), 0)
        else:
            self.columns["delay"][rows] = values
            self.columns["compute"][rows] = growing

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
        self._store_wide(name, checked, step)

    def _store_wide(self, name: str, checked: Mapping[int, FloatArray], step: int) -> None:
        for row, values in checked.items():
            if name not in self.tables:
                self.tables[name] = np.full((len(self), values.size), math.nan)
            self.tables[name][row] = values
            if stamp := WIDE[name].stamp:
                self.columns[stamp][row] = step

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
        if any(outcome.moment is not None for outcome in outcomes):
            moment = self.moments.width or moment
        update = self.width("updates") or update
        check_outcomes(outcomes, lambda place: self.name(rows[place]), moment, update, learn_delays=self.learn_delays)

    def fold(
        self,
        outcomes: Sequence[Outcome],
        step: int,
        lag: int = 0,
        bounded: Collection[ClientId] = (),
        work: Sequence[float] | None = None,
    ) -> None:
        """Store the facts of reports that `check` has accepted.

        Args:
            outcomes: the reports.
            step: version of the model that these clients trained from.
            lag: staleness: steps made since that version.
            bounded: clients with updates that `StepBounds.clip` has clipped; their sketches are not clipped again.
            work: `Task.work` of each report; None = 1 for all.
        """
        at = self.rows(outcome.client for outcome in outcomes)
        rows: list[int] = at.tolist()
        outcomes = _clipped_sketches(self.trust, rows, outcomes, bounded, step + lag)
        done = np.array([outcome.finished for outcome in outcomes], np.bool_)
        self._fold_facts(at, done, outcomes, step)
        moments = {row: o.moment for row, o in zip(rows, outcomes, strict=True) if o.moment is not None}
        self.columns["moment_step"][list(moments)] = step
        fold_moments(self.trust, self.moments, moments)
        took = self.trust.bound_seconds([o.seconds for o in outcomes], [o.measured for o in outcomes])
        took = np.array([ordinary(seconds) for seconds in took.tolist()])
        # Accumulators compare with the delays expected before this answer, so they come first.
        amounts = np.ones(at.size) if work is None else np.array(work, dtype=np.float64)
        self.accumulated.answered(Settled(at, self._expected(at, amounts), took, done, lag))
        if self.learn_delays:
            self._learn_shares(at, took, np.array([outcome.compute for outcome in outcomes]), amounts)
            self._learn_delays(rows, took.tolist(), done.tolist(), step, amounts)

    def _expected(self, rows: IntArray, work: FloatArray) -> FloatArray:
        """(k,) expected seconds of tasks with this `work`, as in `View.seconds_with`."""
        delay: FloatArray = self.columns["delay"][rows]
        if (work == 1).all():
            return delay
        compute = self.columns["compute"][rows]
        return np.asarray(delay + (work - 1) * np.where(np.isnan(compute), ASSUMED_COMPUTE * delay, compute))

    def _fold_facts(self, rows: IntArray, finished: BoolArray, outcomes: Sequence[Outcome], step: int) -> None:
        self.columns["asked"][rows] = True
        sketches = {row: o.update for row, o in zip(rows.tolist(), outcomes, strict=True) if o.update is not None}
        self._store_wide("updates", {row: np.asarray(sketch) for row, sketch in sketches.items()}, step)
        if self._stamp_answers:
            self.columns["update_step"][rows[finished]] = step
        for fact in REPORTED:
            values = np.array([getattr(outcome, fact.name) for outcome in outcomes], dtype=np.float64)
            told = ~np.isnan(values)
            self._note(fact, rows[told], values[told], step)
        np.add.at(self.columns["participations"], rows[finished], 1)
        np.add.at(self.columns["failures"], rows[~finished], 1)

    def fold_weights(self, weighted: Sequence[tuple[float, Outcome]]) -> None:
        """Pass the weights of a step to the accumulators; the weights of clients that finished are scaled to sum 1."""
        finished = [(outcome.client, weight) for weight, outcome in weighted if outcome.finished]
        total = sum(weight for _, weight in finished)
        weights = [weight / total if total > 0 else 0.0 for _, weight in finished]
        self.accumulated.stepped(self.rows(client for client, _ in finished), np.array(weights))

    def _learn_shares(self, rows: IntArray, took: FloatArray, compute: FloatArray, work: FloatArray) -> None:
        """Note which part of a task with work 1 grows with the work, as far as clients report it."""
        told = ~np.isnan(compute) & (took > 0)
        if told.any():
            usual = np.minimum(compute, took)[told] / work[told]
            rest = np.maximum(took - compute, 0.0)[told]
            shares = np.divide(usual, usual + rest, out=np.full(usual.size, math.nan), where=usual + rest > 0)
            self._estimates = self._estimator.with_shares(self._estimates, rows[told], shares)

    def _learn_delays(
        self,
        rows: list[int],
        seconds: list[float],
        finished: list[bool],
        step: int,
        work: FloatArray | None = None,
    ) -> None:
        self._estimates = self._estimator.fold(self._estimates, rows, seconds, finished, step=step, work=work)
        seen = self._estimates.seen
        self.columns["delay"][seen] = self._estimator.seconds(self._estimates)[seen]
        self.columns["compute"][seen] = self._estimates.share[seen] * self.columns["delay"][seen]

    def facts(self) -> dict[str, Any]:
        """Return the facts that a View shows, by field name."""
        stamps = {fact.stamp: name for name, fact in WIDE.items() if fact.stamp}
        shown = {name: self.columns[name] for name, fact in FACTS.items() if fact.shown}
        return {
            "share": self.shares(),
            **{
                name: values
                for name, values in shown.items()
                if name not in stamps or stamps[name] in self.tables or (self._stamp_answers and name == "update_step")
            },
            **self.tables,
            "moments": self.moments if (self.columns["moment_step"] >= 0).any() else None,
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
            known &= self.columns["moment_step"] >= 0
        return known

    def shares(self) -> FloatArray:
        """(n,) weights of the clients in the objective; they sum to 1."""
        count = len(self.ids)
        if self._share_rule == "uniform":
            return np.full(count, 1.0 / count) if count else shares(None, count)
        samples = self.columns["samples"]
        if np.isnan(samples).any():
            row = int(np.flatnonzero(np.isnan(samples))[0])
            raise InputError(
                f"shares='samples' needs everybody's sample count, but that of {self.name(row)} is "
                "unknown: give it to join(), or use shares='uniform'"
            )
        samples = self.trust.bound_samples(samples)
        return shares(samples if samples.any() else None, count, name=self.name)  # no samples: equal shares

    def share_of(self) -> Callable[[ClientId], float | None]:
        """Return a function: client -> its current weight in the objective; None if it has left."""
        values, rows = self.shares(), self._row
        return lambda client: float(values[rows[client]]) if client in rows else None

    def mask(self, clients: Iterable[ClientId] | None = None) -> BoolArray:
        """(n,) True for these clients; None = all clients."""
        if clients is None:
            return np.ones(len(self.ids), dtype=np.bool_)
        mask = np.zeros(len(self.ids), dtype=np.bool_)
        mask[self.rows(clients)] = True
        return mask

    def reachable(self, present: Iterable[ClientId] | None, step: int) -> BoolArray:
        """(n,) True for the clients in `present` (None = all) that have no rest after `step` steps."""
        return self.trust.admitted(self.mask(present), step)

    def ready(self, needs: frozenset[Need], busy: Iterable[ClientId]) -> BoolArray:
        """(n,) True for clients with all facts in `needs` known that are not `busy`."""
        return np.asarray(self.known(needs) & ~self.mask(busy))

    def rows_or_gone(self, clients: Iterable[ClientId]) -> list[int]:
        """Return the row of each client; -1 if it has left."""
        return [self._row.get(client, -1) for client in clients]

    def forget_moments(self) -> None:
        """Delete all feature moments; clients are asked for them again."""
        self.moments = deepcopy(self.no_moments)
        self.moments.append(len(self))
        self.columns["moment_step"][:] = -1
        self.trust.forget_moments()

    def forget_updates(self) -> None:
        """Delete all update sketches."""
        self.tables.pop("updates", None)
        self.columns["update_step"][:] = -1

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
        self._add(ids)
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
            self._estimates = Estimates.load(_below("delays/", arrays))
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


class Accumulated:
    """The values of all accumulators of a scheme."""

    def __init__(self, accumulators: Sequence[Accumulator] = ()) -> None:
        self._all = tuple(accumulators)
        self.values: dict[str, FloatArray] = {each.name: each.empty(0) for each in self._all}

    def append(self, clients: int) -> None:
        """Add entries for clients that joined."""
        for each in self._all:
            if each.per_client:
                self.values[each.name] = np.concatenate([self.values[each.name], each.empty(clients)])

    def remove(self, rows: IntArray) -> None:
        """Drop the entries of clients that left."""
        for each in self._all:
            if each.per_client:
                self.values[each.name] = np.delete(self.values[each.name], rows, axis=0)

    def answered(self, settled: Settled) -> None:
        """Update every accumulator with answers."""
        for each in self._all:
            self.values[each.name] = each.answered(self.values[each.name], settled)

    def stepped(self, rows: IntArray, weights: FloatArray) -> None:
        """Update every accumulator with the weights of a step."""
        for each in self._all:
            self.values[each.name] = each.stepped(self.values[each.name], rows, weights)

    def load(self, saved: dict[str, FloatArray], clients: int) -> None:
        """Restore saved values; raise InputError if they do not fit."""
        for each in self._all:
            values = saved.get(each.name)
            if values is None or values.shape[1:] != each.shape or (each.per_client and len(values) != clients):
                found = "nothing" if values is None else f"shape {values.shape}"
                raise InputError(f"the saved ledger should hold {each.name!r} for {clients} clients, not {found}")
            self.values[each.name] = np.array(values, dtype=np.float64)


def _clipped_sketches(
    trust: Trust, rows: Sequence[int], outcomes: Sequence[Outcome], bounded: Collection[ClientId], step: int
) -> Sequence[Outcome]:
    """Return the outcomes with long update sketches clipped, except for `bounded` clients.

    `StepBounds.clip` has clipped the updates of `bounded` clients, and the server computed their sketches itself.
    """
    if not trust.on:
        return outcomes
    sketches = {
        place: np.asarray(outcome.update, dtype=np.float64)
        for place, outcome in enumerate(outcomes)
        if outcome.finished and outcome.update is not None and outcome.client not in bounded
    }
    with np.errstate(over="ignore"):
        lengths = [float(np.linalg.norm(sketch)) for sketch in sketches.values()]
    factors = trust.clip_factors([rows[place] for place in sketches], lengths, SKETCH, step=step)
    long = {place: factor for place, factor in zip(sketches, factors.tolist(), strict=True) if factor < 1}
    if not long:
        return outcomes
    shorter = {place: factor * sketches[place] if factor else None for place, factor in long.items()}
    return [replace(o, update=shorter[place]) if place in shorter else o for place, o in enumerate(outcomes)]


def fold_moments(trust: Trust, store: MomentStore, reported: Mapping[int, FloatArray]) -> None:
    """Store the reported moments, scaled as trust demands, and rescale stored moments if their scale has changed."""
    if not reported:
        return
    factors = {row: np.asarray(factor, dtype=np.float64) for row, factor in reported.items()}
    before = trust.columns["moment_scale"]
    for row, scale in trust.bound_moments(factors).items():
        if row in factors:
            store.put(row, factors[row] * math.sqrt(scale))
        elif (stored := getattr(store, "factor", lambda _: None)(row)) is not None:
            store.put(row, stored * math.sqrt(scale / before[row]))
