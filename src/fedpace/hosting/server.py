"""A coordinator with what every server around it has: versions of the model, the clock, the folder.

    while (step := server.next_step(transport, available)) is not None:
        moved = server.take(step)                # or make the next model of server.answers(step) oneself
        server.stepped(step, server.shared.arrays, moved=moved, transport=transport)

A transport carries tasks out and brings replies back (`fedpace.flower`, `fedpace.nvflare`). Who starts, when a round
ends and what a late reply is worth are the coordinator's, as in the simulator.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy import optimize, special  # noqa: F401  (where they are first used they would be imported in mid-run)

from fedpace._base.checks import at_least, one_of
from fedpace._base.names import bare
from fedpace._base.signals import terminable
from fedpace.core.aggregation import check_robust
from fedpace.core.coordinator import Coordinator
from fedpace.core.hearing import NOT_FINITE
from fedpace.core.roster import Settings
from fedpace.core.stepping import ServerStep, step_facts
from fedpace.core.tasks import Due, Step, Task
from fedpace.core.types import Need
from fedpace.hosting import state as disk
from fedpace.hosting.courier import Courier, Transport
from fedpace.hosting.folder import ServerFolder, run_info
from fedpace.hosting.presence import FORGET, Presence
from fedpace.hosting.reader import Reader
from fedpace.hosting.readmission import Readmissions
from fedpace.hosting.replies import Reply
from fedpace.hosting.shared_model import ArraysValidation, SharedModel
from fedpace.hosting.sketch import Arrays, UpdateSketch
from fedpace.hosting.stopwatch import Stopwatch
from fedpace.records.round import Round, recorded
from fedpace.server import server_step
from fedpace.trust.robust import RobustRule, make_robust

Clock = Literal["server", "reported"]


@dataclass(frozen=True)
class Host:
    """What a framework is and can do.

    Args:
        name: of the framework, for the records.
        log: where warnings go.
        remedies: what a client must do about something that a scheme needs and it does not send.
        offers: what its clients can report.
    """

    name: str
    log: logging.Logger
    remedies: Mapping[Need, str]
    offers: frozenset[Need] = frozenset(Need)


class Server:
    """The coordinator of a live federation.

    Args:
        scheme: a Selector or a Policy.
        settings: of the coordinator.
        host: the framework.
        clock: `server`: time is this machine's. `reported`: time is what clients report, and nobody really waits.
        folder: where every step is saved, and from which a restarted server goes on; None = nowhere. `fedpace readmit`
            leaves requests there, which are carried out at the start and once per step.
        rule: the server rule; None = the one that the scheme asks for.
        robust: a robust rule in place of the weighted mean, or its name; None = the weighted mean.
        validation: trains a model on the server's own data; for robust rules that need it.
        sketch: entries of an update's sketch.
        loss_key: metric with the client's training loss; empty = the usual ones.
        forget_seconds: clients that were not connected for so long are forgotten.
    """

    def __init__(
        self,
        scheme: Any,
        settings: Settings,
        host: Host,
        *,
        clock: Clock = "server",
        folder: Path | None = None,
        rule: ServerStep[Any] | None = None,
        robust: RobustRule | str | None = None,
        validation: ArraysValidation | None = None,
        sketch: int = 256,
        loss_key: str = "",
        forget_seconds: float = FORGET,
    ) -> None:
        one_of(clock, ("server", "reported"), "clock")
        at_least(sketch, 0, "sketch")
        # No host has a message that stops a client.
        settings = replace(settings, hear_late=True)
        if scheme.first_moments:
            settings = replace(settings, moments_every=0)
        self.rule = server_step(scheme, rule)
        self._robust = make_robust(robust) if isinstance(robust, str) else robust
        self._validation = validation
        check_robust(self._robust, validation)
        self.coordinator = Coordinator(scheme, settings, offers=host.offers)
        self.width = sketch
        self._log = host.log
        settings = self.coordinator.settings
        self.files = ServerFolder(folder, lambda: run_info(scheme, settings, self.rule, host.name, clock, self._robust))
        self.saved = self.files.load(scheme, settings)
        if self.saved is not None:
            self.coordinator = self.saved.coordinator
        coordinator = self.coordinator
        self._reader = Reader(coordinator, host.remedies, host.log, loss_key)
        self.courier = Courier(coordinator, self._reader, host.log, reported=clock == "reported")
        if self.saved is not None:
            self.courier.expect(self.saved.coming)
        self.presence = Presence(coordinator, self._reader, host.log, forget_seconds)
        self._readmissions = Readmissions(folder, host.log)
        self._readmissions.carry_out(coordinator)
        self.shared: SharedModel
        """The current model, from when `share` was first called."""
        self._next: tuple[Task, ...] = ()
        """Tasks that were decided along with the last step."""
        self._ended = coordinator.now
        self.watch = Stopwatch()

    # -- what hosts call -------------------------------------------------------------------------------------

    def share(self, arrays: Arrays) -> SharedModel:
        """Return the shared model, which holds `arrays` now; its server step goes on where it was."""
        if not hasattr(self, "shared"):
            self.shared = SharedModel(arrays, self.rule, robust=self._robust, validation=self._validation)
            self._reader.sketch = UpdateSketch(self.shared.arrays, self.width, seed=self.coordinator.settings.seed)
            if self.saved is not None:
                self.shared.load_state(self.saved.facts.get("server", {}), self.saved.own)
        self.shared.arrays = {key: np.array(array) for key, array in arrays.items()}
        self.courier.models[self.coordinator.step] = self.shared.arrays
        return self.shared

    def next_step(self, transport: Transport, available: Iterable[str] | Callable[[], Iterable[str]]) -> Step | None:
        """Carry tasks out and bring replies back until the model is to step; None = there is nobody to ask.

        Args:
            transport: how they travel.
            available: who is there; or what says so, asked again and again.
        """
        fixed = None if callable(available) else list(available)
        self.files.acquire()
        self._readmissions.carry_out(self.coordinator)
        self._send(transport, self._next)
        # Where answers come faster than a host hands them over, those in hand must not grow old while it is asked for
        # more. Rounds listen first: who was late is heard before anybody is chosen.
        at_once = not (self.coordinator.policy.rounds or self.courier.reported) and self.coordinator.sated
        while True:
            if not at_once:
                with self.watch("reading replies"):
                    self.courier.take_in(transport)
            at_once = False
            present = available() if callable(available) else fixed
            with self.watch("deciding"), self._fitting():
                due = self.coordinator.due(self.courier.now, present)
            if due.step is not None:
                self._next = due.tasks
                return due.step
            if due.tasks:
                self._say(due)
                self._send(transport, due.tasks)
                if self.coordinator.policy.rounds:  # others expect what they saw, which has it in it
                    self.coordinator.wait_at_least(self.courier.latency)
            elif self.coordinator.tasks:
                with self.watch("waiting"):
                    self.courier.pass_time(transport)
            else:
                return None

    def answers(self, step: Step) -> list[tuple[float, Arrays, Reply]]:
        """Return weight, model that was sent, and reply, of all that make a step."""
        models, replies = self.courier.models, self.courier.replies
        return [(weight, models[task.step], replies[task.id]) for task, weight in step.answers]

    def take(self, step: Step) -> bool:
        """Take a step by the server's rule; return whether the model moved."""
        with self.watch("stepping"):
            applied = self.shared.apply(self.coordinator, step, *self._models(step))
        self._drop_lost(step, applied.step)
        return applied.moved

    def bounded(self, step: Step) -> tuple[Step, list[tuple[float, Arrays, Reply]]]:
        """Return a step and its answers as a framework may average them: bounded, or combined by the robust rule."""
        with self.watch("bounding"):
            left, models = self.shared.bounded(self.coordinator, step, *self._models(step))
        self._drop_lost(step, left)
        answers = self.answers(left)
        return left, [
            (weight, sent, replace(reply, model=models[task.id]))
            for (task, _), (weight, sent, reply) in zip(left.answers, answers, strict=True)
        ]

    def _models(self, step: Step) -> tuple[dict[int, Arrays], dict[int, Arrays]]:
        """Return the models of a step's answers, trained and sent, by task."""
        models, replies = self.courier.models, self.courier.replies
        tasks = [task for task, _ in step.answers]
        return {t.id: replies[t.id].model or {} for t in tasks}, {t.id: models[t.step] for t in tasks}

    def _drop_lost(self, step: Step, left: Step) -> None:
        """Drop replies that were refused."""
        for task in {task for task, _ in step.answers} - {task for task, _ in left.answers}:
            self.courier.drop(task, NOT_FINITE)

    def stepped(
        self,
        step: Step,
        model: Arrays,
        *,
        moved: bool,
        own: Any = None,
        facts: Any = None,
        transport: Transport | None = None,
    ) -> Round:
        """Go on after a step, and save it.

        Args:
            step: which was made.
            model: as it is now.
            moved: whether the server step was taken.
            own: arrays that the host keeps for itself.
            facts: what else it remembers, as JSON.
            transport: by which those who are to train next are told before anything is saved, so that nobody waits for
                the disk; None = they are told when the next step is asked for.
        """
        held = [self.courier.replies.get(task.id) for task, _ in step.answers]  # None: it was refused
        losses = [reply.loss for reply in held if reply is not None and not math.isnan(reply.loss)]
        stepping = step_facts(self.shared.state)
        before = set(self.coordinator.at.excluded)
        with self.watch("settling"), self._fitting():
            seconds = self.courier.events.waited if self.coordinator.policy.rounds else None
            turn = self.coordinator.stepped(seconds=seconds, facts=stepping)
        for client in sorted({*(turn.excluded or ())} - before):
            self._log.warning(
                "fedpace: %r is excluded: its updates opposed the validation set. %s takes that back",
                client,
                self._readmissions.remedy(client),
            )
        for client, factor in turn.clipped.items():
            self._log.info("fedpace: the update of %r was clipped to %.2g of its length", client, factor)
        self.courier.models[self.coordinator.step] = model
        self.courier.tidy()
        if transport is not None:
            self._send(transport, self._next)
        entry = recorded(
            self.coordinator,
            turn,
            since=self._ended,
            losses=losses,
            model_bytes=sum(np.asarray(array).nbytes for array in model.values()),
            stepping=stepping if moved else {},
        )
        self._ended = self.coordinator.now
        with self.watch("saving"):
            scalars, vectors = self.shared.saved_state()
            remembered = {"server": scalars, **(facts or {})}
            arrays = {**(own or {}), **vectors}
            self.files.save(disk.Saved(self.coordinator, model, entry, remembered, arrays, self.courier.coming))
            self._readmissions.saved()
        return entry

    @contextmanager
    def sitting(self) -> Iterator[None]:
        """Inside, the server works; how that ended is recorded, and where its seconds went is logged."""
        status = "interrupted"
        try:
            with terminable():
                yield
            status = "finished"
        finally:
            self.files.close(status)
            self._log.info("fedpace: the server's seconds: %s", self.watch)

    # -- inside ----------------------------------------------------------------------------------------------

    def _send(self, transport: Transport, tasks: tuple[Task, ...]) -> None:
        with self.watch("sending"):
            self.courier.send(transport, tasks)
        self._next = ()

    def _say(self, due: Due) -> None:
        """Log who is asked for what."""
        kinds = {"train": "train", "measure": "only report", "probe": "are asked first"}
        for kind, words in kinds.items():
            asked = [task for task in due.tasks if task.kind == kind]
            if asked:
                names = ", ".join(bare(t.client) + (f" {t.weight:.3g}" if kind == "train" else "") for t in asked)
                self._log.info("fedpace: %d of %d clients %s: %s", len(asked), len(self.coordinator), words, names)
        if due.tasks[0].kind == "train" and (status := self.coordinator.at.turn.why.status) != "ok":
            self._log.info("fedpace: %s", status)

    @contextmanager
    def _fitting(self) -> Iterator[None]:
        """Inside, a scheme that chooses k of fewer than k clients chooses all of them."""
        policy, clients = self.coordinator.policy, len(self.coordinator)
        scheme: Any = getattr(policy, "selector", policy)
        if clients and (scheme.fixed_k or 0) > clients:
            smaller = replace(scheme, k=clients)
            self.coordinator.policy = smaller if scheme is policy else policy.of(smaller)
        try:
            yield
        finally:
            self.coordinator.policy = policy
