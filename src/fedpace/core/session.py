"""The one stateful shell around a selector, the same for the simulator, Flower and whatever comes next.

    session = Session(make_selector("delayhet-submodular"), seed=0)
    session.join(["phone-1", "phone-2", "phone-3"])
    while training:
        selection = session.select()
        ... train selection.clients, aggregate with selection.weights (not after a warm-up) ...
        session.observe([Outcome(client, seconds=..., loss=..., moment=...) for client in selection.clients])

It maps the host's client ids to rows, folds outcomes into the ledger, builds Views, checks every Cohort, keeps the
order of calls, and is saved to and restored from plain JSON + npz (`saving.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from fedpace.core import saving
from fedpace.core.checks import BoolArray, FloatArray, IntArray, above, at_least, between, float_array, one_of, shares
from fedpace.core.errors import FedpaceError, InputError, OrderError
from fedpace.core.ledger import Ledger
from fedpace.core.outcomes import make_report, settled_outcomes
from fedpace.core.protocols import MomentStore
from fedpace.core.rng import stream
from fedpace.core.types import (
    ClientId,
    Cohort,
    Diagnostics,
    Need,
    Outcome,
    Probe,
    ProbeRequest,
    Selection,
    Selector,
    View,
)
from fedpace.core.validation import check_cohort, check_probe

Warmup = Literal["full", "lazy"]
ShareRule = Literal["uniform", "samples"]


class Session:
    """A selector with a memory.

    Args:
        selector: the scheme.
        seed: names every random stream of the session.
        shares: what a client weighs in the objective: `uniform` (1/n) or its `samples`.
        warmup: how clients of which the selector knows too little are met. `full`: one round with all of them, before
            the first selection (as the paper does). `lazy`: `warmup_quota` of them ride along in each cohort.
        warmup_wait: share of the clients that a full warm-up waits for. The host reports the others as awaited, goes
            on, and calls `hear` when they answer; until then they are not chosen.
        warmup_quota: see above; those that failed a full warm-up are met this way too.
        learn_delays: estimate delays from what is observed. False: only what the host gives counts.
        moments: an empty store of moments, such as `MomentBank.sketched(...)` for a million clients; None = the usual.
        offers: what the host will report; compared with the selector's needs at once. None: not declared.
    """

    def __init__(
        self,
        selector: Selector[Any],
        *,
        seed: int = 0,
        shares: ShareRule = "uniform",
        warmup: Warmup = "full",
        warmup_quota: int = 5,
        warmup_wait: float = 1.0,
        learn_delays: bool = True,
        moments: MomentStore | None = None,
        offers: Iterable[Need] | None = None,
    ) -> None:
        one_of(shares, ("uniform", "samples"), "shares")
        one_of(warmup, ("full", "lazy"), "warmup")
        at_least(warmup_quota, 1, "warmup_quota")
        above(warmup_wait, 0, "warmup_wait")
        between(warmup_wait, 0, 1, "warmup_wait")
        stream(seed)  # refuses a bad seed now rather than in the first round
        if offers is not None:
            _check_offers(selector, frozenset(offers))
        self.selector = selector
        self.seed = int(seed)
        self.share_rule: ShareRule = shares
        self.warmup: Warmup = warmup
        self.warmup_quota = int(warmup_quota)
        self.warmup_wait = float(warmup_wait)
        self.learn_delays = bool(learn_delays)
        self.step = 0
        self.now = 0.0
        self.pending: Selection | None = None
        self.pending_probe: ProbeRequest | None = None
        self._probed_step = -1
        self._state: Any = selector.init()
        self._ledger = Ledger(learn_delays=self.learn_delays, moments=moments)

    # -- roster ----------------------------------------------------------------------------------------------

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """Everybody in the roster, in order of joining: the rows of the View."""
        return tuple(self._ledger.ids)

    def __len__(self) -> int:
        """Clients in the roster."""
        return len(self._ledger)

    def join(
        self,
        clients: Iterable[ClientId],
        *,
        samples: Sequence[float] | None = None,
        delays: Sequence[float] | FloatArray | None = None,
        labels: ArrayLike | None = None,
    ) -> None:
        """Add clients, at any time, with what is known of them already (one entry or row a client)."""
        if isinstance(clients, str | bytes):
            raise InputError(f"join() takes a list of client ids, but the one id {clients!r} came: put it into a list")
        ids = list(clients)
        for what, given in (("samples", samples), ("delays", delays), ("labels", labels)):
            if given is not None and len(given) != len(ids):  # type: ignore[arg-type]
                raise InputError(f"{len(ids)} clients join with {len(given)} {what}: give one for each")  # type: ignore[arg-type]
        counts = None if samples is None else float_array(samples, "samples", finite=False)
        seconds = None if delays is None else float_array(delays, "delays", finite=False)
        rows = self._ledger.join(ids)
        try:
            if counts is not None:
                for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
                    self._ledger.set_samples(row, count)
            if labels is not None:
                self._ledger.set_labels(rows, labels)
            # Last: an estimate that learnt from a refused client would remember it.
            if seconds is not None:
                self._ledger.set_delays(rows, seconds.tolist())
        except FedpaceError:
            self._ledger.leave(ids)
            raise

    def leave(self, clients: Iterable[ClientId]) -> None:
        """Forget clients, at any time. For one that is only away for a while, see `available` of `select`."""
        self._ledger.leave(clients)

    # -- a round ---------------------------------------------------------------------------------------------

    def view(self, *, now: float | None = None, available: Iterable[ClientId] | None = None) -> View:
        """Return what the selector would be shown."""
        return self._view(self._reachable(available) & self._ready(), self.now if now is None else now)

    def warmup_due(self, *, available: Iterable[ClientId] | None = None) -> bool:
        """Whether the next selection will be a warm-up."""
        return bool(self._newcomers_first(self._reachable(available)).size)

    def probe(self, *, now: float | None = None, available: Iterable[ClientId] | None = None) -> ProbeRequest | None:
        """Ask the selector whom it wants to hear before it chooses; answer with `answer`."""
        self._expect_idle("probe")
        reachable = self._reachable(available)
        if self._newcomers_first(reachable).size or not (reachable & self._ready()).any():
            return None
        probe = self._ask_probe(self._view(reachable & self._ready(), self._advance(now)))
        self._probed_step = self.step
        if probe is not None:
            ids = tuple(self._ledger.ids[row] for row in probe.clients.tolist())
            self.pending_probe = ProbeRequest(self.step, ids, probe.kind, probe.samples)
        return self.pending_probe

    def answer(self, answers: Mapping[Any, float] | Mapping[Any, FloatArray]) -> None:
        """Give the probed clients' losses or gradient sketches; who is missing did not answer."""
        request = self.pending_probe
        if request is None:
            raise OrderError("answer() came without a probe: call probe() first")
        for client in answers:
            if client not in request.clients:
                raise InputError(f"client {client!r} answered a probe, but it was not asked")
        # Who left meanwhile is not heard.
        heard: dict[int, Any] = {
            self._ledger.row(client): value for client, value in answers.items() if client in self._ledger
        }
        if request.kind == "loss":
            self._ledger.set_losses(heard, self.step)
        else:
            self._ledger.set_updates(heard, self.step)
        self.pending_probe = None

    def select(self, *, now: float | None = None, available: Iterable[ClientId] | None = None) -> Selection:
        """Choose who trains next.

        Args:
            now: seconds, virtual or real; may not run backwards.
            available: who can be reached in this round; None = everybody in the roster.
        """
        self._expect_idle("select")
        if len(self._ledger) == 0:
            raise InputError("there are no clients to choose from: let some join first")
        reachable = self._reachable(available)
        if not reachable.any():
            raise InputError(f"none of the {len(self._ledger)} clients is available: wait, and select again")
        now = self._advance(now)
        newcomers = self._newcomers_first(reachable)
        if newcomers.size:
            self.pending = self._warmup_selection(newcomers)
            return self.pending
        ready = reachable & self._ready()
        cohort = self._choose(ready, now) if ready.any() else None
        unknown = reachable & ~self._ready()
        asked = unknown & ~self._ledger.columns["awaited"]
        cohort = self._with_newcomers(cohort, unknown if cohort is None else asked)
        self.pending = self._selection(cohort)
        return self.pending

    def observe(self, outcomes: Iterable[Outcome], *, now: float | None = None) -> None:
        """Report how each client of the pending selection settled: finished or failed, everyone once."""
        selection = self.pending
        if selection is None:
            raise OrderError("observe() came without a selection: call select() first")
        settled = settled_outcomes(selection, list(outcomes), self._ledger)
        self._ledger.check(settled)
        if not selection.warmup and (awaited := [o.client for o in settled if o.awaited]):
            raise InputError(f"client {awaited[0]!r} is reported as awaited, but only a warm-up can wait: it failed")
        now = self._advance(now)
        self._ledger.fold(settled, selection.step)
        self.pending = None
        if selection.warmup:
            return
        self._ledger.remember_weights(
            {c: float(w) for c, w in zip(selection.clients, selection.weights, strict=True)}, settled
        )
        self._state = self.selector.observe(self._state, make_report(selection, settled, self._ledger, now))
        self.step += 1

    def hear(self, outcomes: Iterable[Outcome], *, step: int | None = None, now: float | None = None) -> None:
        """Report clients that were awaited when their warm-up ended, as they answer; between rounds.

        Args:
            outcomes: one a client.
            step: that of the warm-up's selection, whose model they answer; None = the current one.
            now: seconds, as for `select`.
        """
        self._expect_idle("hear")
        heard = list(outcomes)
        for outcome in heard:
            row = self._ledger.row(outcome.client)
            if not self._ledger.columns["awaited"][row] or outcome.awaited:
                raise InputError(f"client {outcome.client!r} is heard of, but it was not awaited")
        self._ledger.check(heard)
        self._advance(now)
        self._ledger.fold(heard, self.step if step is None else step)

    def abandon(self) -> None:
        """Give up the pending selection or probe, as after a restart in mid-round: nobody is blamed.

        Clients that are awaited are asked anew.
        """
        column = self._ledger.columns
        column["asked"] &= ~column["awaited"]
        column["awaited"][:] = False
        self.pending = None
        self.pending_probe = None
        self._probed_step = -1

    # -- saving ----------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the session into the folder `path`, replacing the one before only when all is written."""
        saving.save(self, Path(path))

    @classmethod
    def restore(
        cls, path: str | Path, selector: Selector[Any] | None = None, *, moments: MomentStore | None = None
    ) -> Session:
        """Read a session back.

        `selector` is only needed for a scheme that is not registered, `moments` (an empty store with the same options)
        for a session that was given one.
        """
        return saving.restore(cls, Path(path), selector, moments)

    # -- inside ----------------------------------------------------------------------------------------------

    def _expect_idle(self, call: str) -> None:
        if self.pending is not None:
            raise OrderError(
                f"{call}() came while selection {self.pending.step} is still out: observe() its "
                f"{len(self.pending.clients)} clients first, or abandon() it"
            )
        if self.pending_probe is not None:
            raise OrderError(f"{call}() came while a probe is still out: answer() it first, or abandon() it")

    def _advance(self, now: float | None) -> float:
        if now is not None:
            if not (math.isfinite(now) and now >= self.now):
                raise InputError(f"time must not run backwards: it was {self.now} s, but now = {now} came")
            self.now = float(now)
        return self.now

    def _reachable(self, available: Iterable[ClientId] | None) -> BoolArray:
        if available is None:
            return np.ones(len(self._ledger), dtype=np.bool_)
        mask = np.zeros(len(self._ledger), dtype=np.bool_)
        mask[self._ledger.rows(available)] = True
        return mask

    def _ready(self) -> BoolArray:
        return self._ledger.known(self.selector.needs)

    def _newcomers_first(self, reachable: BoolArray) -> IntArray:
        """Rows that a full warm-up must meet before anybody is selected."""
        if self.warmup != "full":
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero(reachable & ~self._ready() & ~self._ledger.columns["asked"])

    def _shares(self) -> FloatArray:
        count = len(self._ledger)
        if self.share_rule == "uniform":
            return shares(None, count)
        samples = self._ledger.columns["samples"]
        if np.isnan(samples).any():
            row = int(np.flatnonzero(np.isnan(samples))[0])
            raise InputError(
                f"shares='samples' needs everybody's sample count, but that of {self._ledger.name(row)} is "
                "unknown: give it to join(), or use shares='uniform'"
            )
        return shares(samples, count, name=self._ledger.name)

    def _among(self, rows: IntArray) -> FloatArray:
        """Shares of `rows` among themselves; even where none of them counts in the objective."""
        own = self._shares()[rows]
        return shares(own if own.any() else None, rows.size)

    def _view(self, available: BoolArray, now: float) -> View:
        ledger, column = self._ledger, self._ledger.columns
        return View(
            step=self.step,
            now=now,
            available=available,
            share=self._shares(),
            delay=column["delay"],
            loss=column["loss"],
            loss_step=column["loss_step"],
            participations=column["participations"],
            samples=column["samples"],
            labels=ledger.labels,
            updates=ledger.updates,
            update_step=None if ledger.updates is None else column["update_step"],
            recent_weight=column["recent_weight"],
            lateness=ledger.lateness,
            moments=ledger.moments if ledger.moments.known.any() else None,
        )

    def _ask_probe(self, view: View) -> Probe | None:
        probe: Probe | None = self.selector.probe(self._state, view, stream(self.seed, "probe", self.step))
        if probe is not None:
            check_probe(probe, view, self.selector.name, self._ledger.name)
        return probe

    def _choose(self, ready: BoolArray, now: float) -> Cohort:
        view = self._view(ready, now)
        if self._probed_step != self.step and self._ask_probe(view) is not None:
            raise OrderError(f"{self.selector.name} asks clients before it chooses: call probe() and answer() first")
        cohort, state = self.selector.select(self._state, view, stream(self.seed, "select", self.step))
        check_cohort(cohort, view, self.selector.name, self._ledger.name)
        self._state = state
        return cohort

    def _warmup_selection(self, rows: IntArray) -> Selection:
        weights = self._among(rows)
        why = Diagnostics(
            status=f"warm-up: {self.selector.name} knows too little of {rows.size} clients",
            reasons=dict.fromkeys(rows.tolist(), "warm-up"),
        )
        enough = math.ceil(self.warmup_wait * rows.size)
        cohort = Cohort(rows, weights, why=why, enough=0 if enough == rows.size else enough)
        return replace(self._selection(cohort), warmup=True)

    def _with_newcomers(self, cohort: Cohort | None, unknown: BoolArray) -> Cohort:
        """Let a quota of unknown clients ride along: each speaks for itself, the cohort for everybody else."""
        rows = np.flatnonzero(unknown)
        if cohort is not None and rows.size == 0:
            return cohort
        rng = stream(self.seed, "newcomers", self.step)
        # Who failed f times is tried again with probability 2^-f: one dead client must not slow every round down.
        failures = self._ledger.columns["failures"][rows]
        patient = rows[rng.random(rows.size) < 0.5**failures]
        if cohort is not None and patient.size == 0:
            return cohort
        rows = patient if patient.size else rows
        rows = np.sort(rng.choice(rows, size=min(self.warmup_quota, rows.size), replace=False))
        reasons = dict.fromkeys(rows.tolist(), "never seen: part of the lazy warm-up")
        own = self._shares()[rows]
        if cohort is None:
            status = f"lazy warm-up: {self.selector.name} knows too little of every client"
            return Cohort(rows, self._among(rows), why=Diagnostics(status=status, reasons=reasons))
        rest = max(0.0, 1.0 - float(own.sum()))
        return replace(
            cohort,
            clients=np.concatenate([cohort.clients, rows]),
            weights=np.concatenate([rest * cohort.weights, own]),
            why=replace(cohort.why, reasons={**cohort.why.reasons, **reasons}),
        )

    def _selection(self, cohort: Cohort) -> Selection:
        ids = tuple(self._ledger.ids[row] for row in cohort.clients.tolist())
        return Selection(
            self.step,
            ids,
            cohort.weights,
            cohort.mode,
            cohort.deadline,
            cohort.why,
            enough=cohort.enough,
        )


def _check_offers(selector: Selector[Any], offers: frozenset[Need]) -> None:
    missing = selector.needs - offers
    if missing:
        has = ", ".join(sorted(offers)) or "nothing"
        raise InputError(f"{selector.name} needs {', '.join(sorted(missing))}; this host reports {has} only")
