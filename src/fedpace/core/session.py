"""A coordinator for hosts that work in rounds and wait for each: choose, train, report.

    session = Session(make_selector("delayhet-submodular"), seed=0)
    session.join(["phone-1", "phone-2", "phone-3"])
    while training:
        selection = session.select()
        ... train selection.clients, aggregate with selection.weights (not after a warm-up) ...
        session.observe([Outcome(client, seconds=..., loss=..., moment=...) for client in selection.clients])

A thin shell: it turns tasks into selections and reports into answers, and keeps the order of calls. Everything else is
the Coordinator's (`session.coordinator`).
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
from fedpace.core.outcomes import checked_outcomes, settled_outcomes
from fedpace.core.protocols import MomentStore
from fedpace.core.roster import Settings, ShareRule, Warmup
from fedpace.core.tasks import Due, Wait
from fedpace.core.types import ClientId, Diagnostics, Need, Outcome, ProbeRequest, Selection, Selector, View
from fedpace.core.warmup import full_batch

__all__ = ["Session", "ShareRule", "Warmup"]


class Session:
    """A selector with a memory.

    Args:
        selector: the scheme.
        seed: names every random stream of the session.
        shares: what a client weighs in the objective: `uniform` (1/n) or its `samples`.
        warmup: how clients of which the selector knows too little are met. `full`: one round with all of them, before
            the first selection (as the paper does). `lazy`: `warmup_quota` of them come with each cohort, with weight
            0; where nobody is known yet, they are the cohort.
        warmup_wait: share of the clients that a full warm-up waits for. The host reports the others as late, goes
            on, and calls `observe_late` when they answer; until then they are not chosen.
        warmup_quota: see above; those that failed a full warm-up are met this way too.
        learn_delays: estimate delays from what is observed. False: only what the host gives counts.
        trust: bound the influence of each client, see docs/trust.md.
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
        trust: bool = True,
        moments: MomentStore | None = None,
        offers: Iterable[Need] | None = None,
    ) -> None:
        settings = Settings(seed, shares, warmup, warmup_quota, warmup_wait, learn_delays, trust=trust)
        self.coordinator = Coordinator(selector, settings, moments=moments, offers=offers)
        if not self.coordinator.policy.rounds:
            raise InputError(f"{selector.name} works without rounds, and Session in rounds: use fedpace.Coordinator")
        self.pending: Selection | None = None
        self.pending_probe: ProbeRequest | None = None

    # -- what is the coordinator's ---------------------------------------------------------------------------

    @property
    def selector(self) -> Selector[Any]:
        """The scheme."""
        selector: Selector[Any] = self.coordinator.policy.selector
        return selector

    @selector.setter
    def selector(self, selector: Selector[Any]) -> None:
        self.coordinator.policy.selector = selector

    @property
    def settings(self) -> Settings:
        """How it is set up."""
        return self.coordinator.settings

    @property
    def step(self) -> int:
        """Rounds that were reported."""
        return self.coordinator.step

    @property
    def now(self) -> float:
        """Seconds, virtual or real."""
        return self.coordinator.now

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """Everybody in the roster, in order of joining: the rows of the View."""
        return self.coordinator.clients

    def __len__(self) -> int:
        """Clients in the roster."""
        return len(self.coordinator)

    def join(
        self,
        clients: Iterable[ClientId],
        *,
        samples: Sequence[float] | None = None,
        delays: Sequence[float] | FloatArray | None = None,
        labels: ArrayLike | None = None,
    ) -> None:
        """Add clients, at any time, with what is known of them already (one entry or row per client)."""
        self.coordinator.join(clients, samples=samples, delays=delays, labels=labels)

    def leave(self, clients: Iterable[ClientId]) -> None:
        """Forget clients, at any time. For one that is only away for a while, see `available` of `select`."""
        self.coordinator.leave(clients)

    @property
    def excluded(self) -> set[ClientId]:
        """Clients that are not asked, by the evidence of a validation set; `readmit` takes it back."""
        return self.coordinator.excluded

    def readmit(self, clients: Iterable[ClientId] | None = None) -> list[ClientId]:
        """Ask excluded clients again, None = all of them, and return those that were excluded."""
        return self.coordinator.readmit(clients)

    def view(self, *, now: float | None = None, available: Iterable[ClientId] | None = None) -> View:
        """Return what the selector would be shown."""
        return self.coordinator.view(now=now, available=available)

    # -- a round ---------------------------------------------------------------------------------------------

    def warmup_due(self, *, available: Iterable[ClientId] | None = None) -> bool:
        """Whether the next selection will be a warm-up."""
        return bool(full_batch(self.coordinator, self.coordinator.reachable(available)).size)

    def probe(self, *, now: float | None = None, available: Iterable[ClientId] | None = None) -> ProbeRequest | None:
        """Ask the selector whom it wants to hear before it chooses; answer with `answer`."""
        self._expect_idle("probe")
        tasks = self.coordinator.ask(now, available).tasks
        if tasks:
            first = tasks[0]
            ids = tuple(task.client for task in tasks)
            self.pending_probe = ProbeRequest(self.step, ids, first.probe, first.samples)
        return self.pending_probe

    def answer(self, answers: Mapping[Any, float] | Mapping[Any, FloatArray]) -> None:
        """Give the probed clients' losses or gradient sketches; who is missing did not answer."""
        request = self.pending_probe
        if request is None:
            raise OrderError("answer() came without a probe: call probe() first")
        for client in answers:
            if client not in request.clients:
                raise InputError(f"client {client!r} answered a probe, but it was not asked")
        self.coordinator.note_probes(answers, request.kind)
        self.pending_probe = None

    def select(self, *, now: float | None = None, available: Iterable[ClientId] | None = None) -> Selection:
        """Choose who trains next.

        Args:
            now: seconds, virtual or real; may not run backwards.
            available: who can be reached in this round; None = everybody in the roster.
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
            raise InputError(
                f"{self.selector.name} can choose nobody before those that are late answer: observe_late() them"
            )
        self.pending = self._selection(due)
        return self.pending

    def aggregate(self, model: Any, trained: Mapping[ClientId, Any]) -> Any:
        """Return the next model, made of what clients of the pending selection trained; then call `observe`.

        Updates that are not finite are left out, long ones are clipped, and the model's robust rule combines them where
        it has one. Nothing is done after a warm-up.

        Args:
            model: a `fedpace.SharedModel`; it becomes the next one.
            trained: client -> the named arrays that it trained; clients that failed are missing.
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
        model.apply(self.coordinator, step, {task.id: trained[task.client] for task in tasks})
        return model.arrays

    def observe(self, outcomes: Iterable[Outcome], *, now: float | None = None) -> None:
        """Report how each client of the pending selection settled: finished or failed, everyone once."""
        selection = self.pending
        if selection is None:
            raise OrderError("observe() came without a selection: call select() first")
        settled = settled_outcomes(selection, outcomes, self.coordinator.ledger)
        measuring = {task.client for task in self.coordinator.tasks if task.kind == "measure"}
        for outcome in settled:
            if outcome.late and outcome.finished:
                raise InputError(f"client {outcome.client!r} is late, so it has not finished: finished=False")
            if outcome.late and outcome.client not in measuring:
                raise InputError(
                    f"client {outcome.client!r} is reported as late, but only a warm-up can wait: it failed"
                )
        self.coordinator.widths.vote(self.coordinator, settled)
        self.coordinator.ledger.check(settled)
        self.coordinator.advance(now)
        self._take_in(outcome for outcome in settled if not outcome.late)
        if selection.warmup:
            self.coordinator.go_on()
        else:
            self.coordinator.due()
            self.coordinator.stepped()
            self.coordinator.go_on()
        self.pending = None

    def observe_late(self, outcomes: Iterable[Outcome], *, now: float | None = None) -> None:
        """Report clients that were late, as they answer; between rounds."""
        self._expect_idle("observe_late")
        heard = checked_outcomes(outcomes)
        late = {task.client for task in self.coordinator.tasks}
        for outcome in heard:
            self.coordinator.ledger.row(outcome.client)
            if outcome.client not in late or outcome.late:
                raise InputError(f"client {outcome.client!r} is reported, but it was not late")
        self.coordinator.widths.vote(self.coordinator, heard)
        self.coordinator.ledger.check(heard)
        self.coordinator.advance(now)
        self._take_in(heard)
        self.coordinator.go_on()

    def abandon(self) -> None:
        """Give up the pending selection or probe, as after a restart in mid-round: nobody is blamed.

        Clients that are late are asked anew.
        """
        self.coordinator.abandon()
        self.pending = self.pending_probe = None

    # -- saving ----------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the session into the folder `path`, replacing the one before only when all is written."""
        saving.save(self.coordinator, folder_of(path), {"pending": self.pending, "pending_probe": self.pending_probe})

    @classmethod
    def restore(
        cls, path: str | Path, selector: Selector[Any] | None = None, *, moments: MomentStore | None = None
    ) -> Session:
        """Read a session back.

        `selector` is only needed for a scheme that is not registered, `moments` (an empty store with the same options)
        for a session that was given one.
        """
        session = cls.__new__(cls)
        kinds = {"pending": Selection, "pending_probe": ProbeRequest}
        session.coordinator, shell = saving.restore(folder_of(path), selector, moments, kinds)
        session.pending, session.pending_probe = shell["pending"], shell["pending_probe"]
        return session

    # -- inside ----------------------------------------------------------------------------------------------

    def _take_in(self, outcomes: Iterable[Outcome]) -> None:
        tasks = {task.client: task.id for task in self.coordinator.tasks}
        for outcome in outcomes:
            if outcome.client in tasks:  # who left and joined again since has no task any more
                self.coordinator.receive(tasks[outcome.client], outcome)

    def _expect_idle(self, call: str) -> None:
        if self.pending is not None:
            raise OrderError(
                f"{call}() came while selection {self.pending.step} is still out: observe() its "
                f"{len(self.pending.clients)} clients first, or abandon() it"
            )
        if self.pending_probe is not None:
            raise OrderError(f"{call}() came while a probe is still out: answer() it first, or abandon() it")

    def _selection(self, due: Due) -> Selection:
        turn, wait = self.coordinator.at.turn, self.coordinator.at.wait or Wait()
        clients = tuple(task.client for task in due.tasks)
        rows = self.coordinator.ledger.rows(clients)
        if due.warmup:
            why = Diagnostics(
                status=f"warm-up: {self.selector.name} knows too little of {rows.size} clients",
                reasons=dict.fromkeys(rows.tolist(), "warm-up"),
            )
            quorum = self.coordinator.at.quorum
            weights = self.coordinator.among(rows)
            waits = 0 if quorum == rows.size else quorum
            return Selection(self.step, clients, weights, "average", np.inf, why, warmup=True, quorum=waits)
        newcomers = sum(task.kind == "measure" for task in due.tasks)
        never = dict.fromkeys(rows[rows.size - newcomers :].tolist(), "never seen: part of the lazy warm-up")
        return Selection(
            self.step,
            clients,
            np.array([task.weight for task in due.tasks]),
            turn.mode,
            wait.seconds,
            replace(turn.why, reasons={**turn.why.reasons, **never}) if never else turn.why,
            quorum=wait.answers,
            newcomers=newcomers,
        )
