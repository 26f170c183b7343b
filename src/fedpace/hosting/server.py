"""The live server: a coordinator together with model versions, a clock and a state folder.

    while (step := server.next_step(transport, available)) is not None:
        moved = server.take(step)                # or aggregate server.answers(step) yourself
        server.stepped(step, server.shared.arrays, moved=moved, transport=transport)

A transport sends tasks and returns replies (`fedpace.flower`, `fedpace.nvflare`). As in the simulator, the coordinator
decides which clients start, when a round ends and how much a stale reply counts.
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
from scipy import optimize, special  # noqa: F401  (import them now, not in the middle of a run)

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
    """Describes the framework that runs the server.

    Args:
        name: name of the framework, for the records.
        log: logger for warnings.
        remedies: fact -> advice for a client that does not send this fact although the scheme needs it.
        offers: facts that clients of the framework can report.
    """

    name: str
    log: logging.Logger
    remedies: Mapping[Need, str]
    offers: frozenset[Need] = frozenset(Need)


class Server:
    """The server of a live federation.

    Args:
        scheme: a Selector or a Policy.
        settings: options of the coordinator; `hear_late` is always on.
        host: the framework.
        clock: `server` = real time on this machine. `reported` = virtual time from the seconds that clients report.
        folder: the server saves every step there, and a restarted server continues from it; None = no saving. The
            server also reads requests of `fedpace readmit` there, at the start and once per step.
        rule: the server rule; None = the default of the scheme.
        robust: a robust rule, or its name, that replaces the weighted mean; None = the weighted mean.
        validation: trains a model on the server's own data, for robust rules that need it.
        sketch: number of entries in the sketch of an update; 0 = the whole update.
        loss_key: name of the metric with the client's training loss; empty = try the names in `LOSS_KEYS`.
        forget_seconds: remove clients that were not connected for this long.
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
        # No framework can stop a client in mid-task.
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
        """The current model; set by the first call of `share`."""
        self._next: tuple[Task, ...] = ()
        """Tasks that came with the last step and are not sent yet."""
        self._ended = coordinator.now
        self.watch = Stopwatch()

    # -- what hosts call -------------------------------------------------------------------------------------

    def share(self, arrays: Arrays) -> SharedModel:
        """Set the arrays of the shared model and return it; the state of its server rule is kept or restored."""
        if not hasattr(self, "shared"):
            self.shared = SharedModel(arrays, self.rule, robust=self._robust, validation=self._validation)
            self._reader.sketch = UpdateSketch(self.shared.arrays, self.width, seed=self.coordinator.settings.seed)
            if self.saved is not None:
                self.shared.load_state(self.saved.facts.get("server", {}), self.saved.own)
        self.shared.arrays = {key: np.array(array) for key, array in arrays.items()}
        self.courier.models[self.coordinator.step] = self.shared.arrays
        return self.shared

    def next_step(self, transport: Transport, available: Iterable[str] | Callable[[], Iterable[str]]) -> Step | None:
        """Send tasks and collect replies until a step is due, and return that step; None = no client can be asked.

        Args:
            transport: sends tasks and collects replies.
            available: the connected clients, or a function that returns them and is called repeatedly.
        """
        fixed = None if callable(available) else list(available)
        self.files.acquire()
        self._readmissions.carry_out(self.coordinator)
        self._send(transport, self._next)
        # Without rounds, use the answers in hand at once if they suffice: under load they would grow stale while more
        # replies are read. Rounds read replies first, so that stragglers are known before the next choice.
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
                if self.coordinator.policy.rounds:  # the waits of other policies already include the latency
                    self.coordinator.wait_at_least(self.courier.latency)
            elif self.coordinator.tasks:
                with self.watch("waiting"):
                    self.courier.pass_time(transport)
            else:
                return None

    def answers(self, step: Step) -> list[tuple[float, Arrays, Reply]]:
        """Return (weight, model that was sent, reply) for each answer of a step."""
        models, replies = self.courier.models, self.courier.replies
        return [(weight, models[task.step], replies[task.id]) for task, weight in step.answers]

    def take(self, step: Step) -> bool:
        """Make a step with the server rule, and return whether the model changed."""
        with self.watch("stepping"):
            applied = self.shared.apply(self.coordinator, step, *self._models(step))
        self._drop_lost(step, applied.step)
        return applied.moved

    def bounded(self, step: Step) -> tuple[Step, list[tuple[float, Arrays, Reply]]]:
        """Return a step and its answers for a framework that averages itself.

        Long updates are clipped. With a robust rule, every answer is replaced by the combined model.
        """
        with self.watch("bounding"):
            left, models = self.shared.bounded(self.coordinator, step, *self._models(step))
        self._drop_lost(step, left)
        answers = self.answers(left)
        return left, [
            (weight, sent, replace(reply, model=models[task.id]))
            for (task, _), (weight, sent, reply) in zip(left.answers, answers, strict=True)
        ]

    def _models(self, step: Step) -> tuple[dict[int, Arrays], dict[int, Arrays]]:
        """Return task id -> trained model and task id -> sent model, for the answers of a step."""
        models, replies = self.courier.models, self.courier.replies
        tasks = [task for task, _ in step.answers]
        return {t.id: replies[t.id].model or {} for t in tasks}, {t.id: models[t.step] for t in tasks}

    def _drop_lost(self, step: Step, left: Step) -> None:
        """Drop the replies of `step` that are not in `left`, because they are not finite."""
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
        """Record that a step was made, send the next tasks, save the state, and return the record of the round.

        Args:
            step: the step that was made.
            model: the model after the step.
            moved: whether the server rule changed the model.
            own: further arrays of the host to save.
            facts: further JSON values of the host to save.
            transport: sends the next tasks before the state is saved, so that clients do not wait for the disk; None =
                `next_step` sends them.
        """
        held = [self.courier.replies.get(task.id) for task, _ in step.answers]  # None = refused
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
        """Context manager for a run of the server: at its end it records the status and logs the time spent."""
        status = "interrupted"
        try:
            with terminable():
                yield
            status = "finished"
        finally:
            self.files.close(status)
            self._log.info("fedpace: the server's seconds: %s", self.watch)

    # -- helpers ---------------------------------------------------------------------------------------------

    def _send(self, transport: Transport, tasks: tuple[Task, ...]) -> None:
        with self.watch("sending"):
            self.courier.send(transport, tasks)
        self._next = ()

    def _say(self, due: Due) -> None:
        """Log which clients get which tasks."""
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
        """Context manager: inside it, a scheme with k above the number of clients uses k = that number."""
        policy, clients = self.coordinator.policy, len(self.coordinator)
        scheme: Any = getattr(policy, "selector", policy)
        if clients and (scheme.fixed_k or 0) > clients:
            smaller = replace(scheme, k=clients)
            self.coordinator.policy = smaller if scheme is policy else policy.of(smaller)
        try:
            yield
        finally:
            self.coordinator.policy = policy
