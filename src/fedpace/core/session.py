"""Session: a simple interface to the coordinator for hosts that train in synchronous rounds: choose, train, report.

    session = Session(make_selector("delayhet-submodular"), seed=0)
    session.join(["phone-1", "phone-2", "phone-3"])
    while training:
        selection = session.select()
        ... train selection.clients, aggregate with selection.weights (not after a warm-up) ...
        session.observe([Outcome(client, seconds=..., loss=..., moment=...) for client in selection.clients])

A Session turns tasks into selections and reports into answers, and checks the order of calls. The Coordinator does
everything else (`session.coordinator`). For training without rounds, use the Coordinator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import FloatArray, listed
from fedpace._base.errors import InputError, OrderError
from fedpace._base.files import folder_of
from fedpace.core import saving
from fedpace.core.coordinator import Coordinator
from fedpace.core.settings import Settings, ShareRule, Warmup
from fedpace.core.tasks import Actions, Wait
from fedpace.core.types import ClientId, Diagnostics, Need, Outcome, ProbeRequest, Selection, Selector, View
from fedpace.core.validation import settled_outcomes
from fedpace.moments.store import MomentStore

__all__ = ["Session", "ShareRule", "Warmup"]


class Session:
    """Chooses the cohort of each round and learns from the reports.

    Args:
        selector: the scheme.
        seed: seed of all random streams of the session.
        shares: weight of a client in the objective: `uniform` (1/n), or proportional to its `samples`.
        warmup: how the session measures clients if the selector knows too few facts about them. `full`: one round with
            all of them before the first selection, as in the paper. `lazy`: `warmup_quota` of them join each cohort
            with weight 0; while the selector knows no client, they are the cohort.
        warmup_quota: see `warmup`. Clients that failed in a full warm-up are also measured in this lazy way.
        learn_delays: estimate delays from observed times. False = use only the delays that the host gives.
        trust: bound the influence of each client, see docs/trust.md.
        moments: an empty store for feature moments, such as `MomentBank.sketched(...)` for a million clients; None =
            the default store.
        offers: facts that the host will report, and `Need.WORK` if its clients train as much as `Selection.work` says.
            If the selector needs more, the constructor raises InputError. None = no facts are declared or checked, and
            all clients train the same.
    """

    def __init__(
        self,
        selector: Selector[Any],
        *,
        seed: int = 0,
        shares: ShareRule = "uniform",
        warmup: Warmup = "full",
        warmup_quota: int = 5,
        learn_delays: bool = True,
        trust: bool = True,
        moments: MomentStore | None = None,
        offers: Iterable[Need] | None = None,
    ) -> None:
        settings = Settings(seed, shares, warmup, warmup_quota, learn_delays=learn_delays, trust=trust)
        self.coordinator = Coordinator(selector, settings, moments=moments, offers=offers)
        if not self.coordinator.policy.rounds:
            raise InputError(f"{selector.name} works without rounds, and Session in rounds: use fedpace.Coordinator")
        self.pending: Selection | None = None
        self.pending_probe: ProbeRequest | None = None

    # -- calls that the coordinator answers ------------------------------------------------------------------

    @property
    def selector(self) -> Selector[Any]:
        """The scheme."""
        selector: Selector[Any] = self.coordinator.policy.selector
        return selector

    @property
    def settings(self) -> Settings:
        """The options of the session."""
        return self.coordinator.settings

    @property
    def step(self) -> int:
        """Number of rounds reported with `observe`."""
        return self.coordinator.step

    @property
    def now(self) -> float:
        """Current time in seconds, virtual or real."""
        return self.coordinator.now

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """All client ids in order of joining; the index of a client is its row in the View."""
        return self.coordinator.clients

    def __len__(self) -> int:
        """Number of clients."""
        return len(self.coordinator)

    def join(
        self,
        clients: Iterable[ClientId],
        *,
        samples: Sequence[float] | None = None,
        delays: Sequence[float] | FloatArray | None = None,
        compute: Sequence[float] | FloatArray | None = None,
        labels: ArrayLike | None = None,
    ) -> None:
        """Add clients, at any time. Pass known facts with one entry or row per client; see `Coordinator.join`."""
        self.coordinator.join(clients, samples=samples, delays=delays, compute=compute, labels=labels)

    def leave(self, clients: Iterable[ClientId]) -> None:
        """Remove clients and their facts, at any time. For a short absence, use `available` of `select` instead."""
        self.coordinator.leave(clients)

    @property
    def excluded(self) -> set[ClientId]:
        """Clients that are not chosen, because the validation set refused their updates; `readmit` undoes it."""
        return self.coordinator.excluded

    def readmit(self, clients: Iterable[ClientId] | None = None) -> list[ClientId]:
        """End the exclusion of clients (None = all clients), and return the clients that were excluded."""
        return self.coordinator.readmit(clients)

    def view(self, *, now: float | None = None, available: Iterable[ClientId] | None = None) -> View:
        """Return the View that the selector would get now."""
        return self.coordinator.view(now=now, available=available)

    # -- a round ---------------------------------------------------------------------------------------------

    def probe(self, *, now: float | None = None, available: Iterable[ClientId] | None = None) -> ProbeRequest | None:
        """Return the probe that the selector wants before it chooses, or None; pass the results to `answer`."""
        self._expect_idle("probe")
        tasks = self.coordinator.ask(now, available).tasks
        if tasks:
            first = tasks[0]
            ids = tuple(task.client for task in tasks)
            self.pending_probe = ProbeRequest(self.step, ids, first.probe, first.samples)
        return self.pending_probe

    def answer(self, answers: Mapping[Any, float] | Mapping[Any, FloatArray]) -> None:
        """Store the results of the probe: client -> loss or gradient sketch. Omit clients that did not answer."""
        request = self.pending_probe
        if request is None:
            raise OrderError("answer() came without a probe: call probe() first")
        for client in answers:
            if client not in request.clients:
                raise InputError(f"client {client!r} answered a probe, but it was not asked")
        self.coordinator.note_probes(answers, request.kind)
        self.pending_probe = None

    def select(self, *, now: float | None = None, available: Iterable[ClientId] | None = None) -> Selection:
        """Return the clients that train next, with their weights; report all of them with `observe`.

        Args:
            now: seconds, virtual or real; must not run backwards. None = the time has not changed.
            available: clients that can be reached in this round; None = all clients.
        """
        self._expect_idle("select")
        present = None if available is None else listed(available, "the clients that are available")
        if len(self) == 0:
            raise InputError("there are no clients to choose from: let some join first")
        if not self.coordinator.reachable(present).any():
            raise InputError(f"none of the {len(self)} clients is available: wait, and select again")
        due = self.coordinator.due(now, present)
        if due.tasks and due.tasks[0].kind == "probe":
            self.coordinator.abandon_probe()
            raise OrderError(f"{self.selector.name} asks clients before it chooses: call probe() and answer() first")
        if not due.tasks:
            raise InputError(f"{self.selector.name} can choose none of the clients that are available: wait")
        self.pending = self._selection(due)
        return self.pending

    def aggregate(
        self, model: Any, trained: Mapping[ClientId, Any], *, steps: Mapping[ClientId, float] | None = None
    ) -> Any:
        """Step the model with the results of the pending selection, and return its arrays; then call `observe`.

        The step leaves out updates that are not finite and clips long ones. If the model has a robust rule, that rule
        combines the updates. After a warm-up the model does not change.

        Args:
            model: a `fedpace.SharedModel`; changed in place.
            trained: client -> the named arrays that it trained. Omit clients that failed.
            steps: client -> number of local steps that it made, for server rules that normalise by it (`fednova`);
                None = unknown.
        """
        selection = self.pending
        if selection is None:
            raise OrderError("aggregate() came without a selection: call select() first")
        weights = dict(zip(selection.clients, selection.weights.tolist(), strict=True))
        for client in trained:
            if client not in weights:
                raise InputError(f"client {client!r} trained, but it is not in selection {selection.step}")
        if selection.warmup:
            return model.arrays
        tasks = [t for t in self.coordinator.tasks if t.kind == "train" and t.client in trained]
        step = self.coordinator.step_of(tasks, np.array([weights[t.client] for t in tasks]), selection.mode)
        made = None if steps is None else {t.id: steps[t.client] for t in tasks if t.client in steps}
        model.apply(self.coordinator, step, {task.id: trained[task.client] for task in tasks}, None, made)
        return model.arrays

    def observe(self, outcomes: Iterable[Outcome], *, now: float | None = None) -> None:
        """Report the outcome of the pending selection: one Outcome for every client, finished or failed."""
        selection = self.pending
        if selection is None:
            raise OrderError("observe() came without a selection: call select() first")
        settled = settled_outcomes(selection, outcomes, self.coordinator.ledger)
        self.coordinator.widths.vote(settled)
        self.coordinator.ledger.check(settled)
        self.coordinator.advance(now)
        tasks = {task.client: task.id for task in self.coordinator.tasks}
        for outcome in settled:
            if outcome.client in tasks:  # clients that left and joined again have no task
                self.coordinator.receive(tasks[outcome.client], outcome)
        if selection.warmup:
            self.coordinator.end_warmup()
        else:
            self.coordinator.due()
            self.coordinator.stepped()
            self.coordinator.end_warmup()
        self.pending = None

    def abandon(self) -> None:
        """Give up the pending selection or probe, as after a restart in mid-round; no client counts as failed."""
        self.coordinator.abandon()
        self.pending = self.pending_probe = None

    # -- saving ----------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the session into the folder `path`; the session saved there stays valid until the write is done."""
        saving.save(self.coordinator, folder_of(path), {"pending": self.pending, "pending_probe": self.pending_probe})

    @classmethod
    def restore(
        cls, path: str | Path, selector: Selector[Any] | None = None, *, moments: MomentStore | None = None
    ) -> Session:
        """Return the session saved in the folder `path`.

        `selector` is only needed for a scheme that is not registered. `moments` is only needed for a session that was
        created with it: pass an empty store with the same options.
        """
        session = cls.__new__(cls)
        kinds = {"pending": Selection, "pending_probe": ProbeRequest}
        session.coordinator, shell = saving.restore(folder_of(path), selector, moments, kinds)
        session.pending, session.pending_probe = shell["pending"], shell["pending_probe"]
        return session

    # -- helpers ---------------------------------------------------------------------------------------------

    def _expect_idle(self, call: str) -> None:
        if self.pending is not None:
            raise OrderError(
                f"{call}() came while selection {self.pending.step} is still out: observe() its "
                f"{len(self.pending.clients)} clients first, or abandon() it"
            )
        if self.pending_probe is not None:
            raise OrderError(f"{call}() came while a probe is still out: answer() it first, or abandon() it")

    def _selection(self, due: Actions) -> Selection:
        log, wait = self.coordinator.log, self.coordinator.progress.wait or Wait()
        clients = tuple(task.client for task in due.tasks)
        rows = self.coordinator.ledger.rows(clients)
        if due.warmup:
            why = Diagnostics(
                status=f"warm-up: {self.selector.name} knows too little of {rows.size} clients",
                reasons=dict.fromkeys(rows.tolist(), "warm-up"),
            )
            return Selection(self.step, clients, self.coordinator.among(rows), "average", np.inf, why, warmup=True)
        newcomers = sum(task.kind == "measure" for task in due.tasks)
        never = dict.fromkeys(rows[rows.size - newcomers :].tolist(), "never seen: part of the lazy warm-up")
        return Selection(
            self.step,
            clients,
            np.array([task.weight for task in due.tasks]),
            log.mode,
            wait.seconds,
            replace(log.why, reasons={**log.why.reasons, **never}) if never else log.why,
            quorum=wait.answers,
            newcomers=newcomers,
            work=None if all(task.work == 1 for task in due.tasks) else np.array([task.work for task in due.tasks]),
        )
