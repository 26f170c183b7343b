"""A coordinator with what every server around it has: versions of the model, the clock, the folder.

    while (step := server.next_step(transport, available)) is not None:
        ...                                      # make the next model of server.answers(step)
        server.stepped(model, moved=...)

A transport carries tasks out and brings replies back (`fedpace.flower`, `fedpace.nvflare`). Who starts, when a round
ends and what a late reply is worth are the coordinator's, as in the simulator.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedpace.core.checks import at_least, one_of
from fedpace.core.codec import gathered
from fedpace.core.coordinator import Coordinator
from fedpace.core.errors import InputError
from fedpace.core.roster import Settings
from fedpace.core.screening import FACTOR
from fedpace.core.stepping import ServerStep, step_facts
from fedpace.core.tasks import Due, Step, Task
from fedpace.core.types import Need, configuration
from fedpace.hosting import state as disk
from fedpace.hosting.courier import Courier, Transport
from fedpace.hosting.diary import Diary
from fedpace.hosting.lock import FolderLock
from fedpace.hosting.presence import FORGET, Presence
from fedpace.hosting.reader import Reader
from fedpace.hosting.replies import Reply
from fedpace.hosting.shared_model import SharedModel
from fedpace.hosting.sketch import Arrays, UpdateSketch, flat_update
from fedpace.records.round import Round, traffic
from fedpace.records.run import RunInfo
from fedpace.server import server_step

MAY_CHANGE = ("deadline", "moments_every", "trust", "screen")
"""Settings that a restarted server may be given anew."""
Clock = Literal["server", "reported"]
SCREEN = FACTOR


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
        folder: where every step is saved, and from which a restarted server goes on; None = nowhere.
        rule: the server step; None = the one that the scheme asks for.
        sketch: entries of an update's sketch.
        loss_key: metric with the client's training loss; empty = the usual ones.
        screen: refuse updates longer than this many times the usual (`fedpace.core.screening`); 0 = none.
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
        sketch: int = 256,
        loss_key: str = "",
        screen: float = SCREEN,
        forget_seconds: float = FORGET,
    ) -> None:
        one_of(clock, ("server", "reported"), "clock")
        at_least(sketch, 0, "sketch")
        settings = replace(settings, screen=screen)
        if scheme.first_moments:
            settings = replace(settings, moments_every=0)
        self.rule = server_step(scheme, rule)
        self.coordinator = Coordinator(scheme, settings, offers=host.offers)
        self.width = sketch
        self._folder, self._log = folder, host.log
        self._diary = None if folder is None else Diary(folder, self._info(scheme, settings, host))
        self._lock = None if folder is None else FolderLock(folder)
        self.saved: disk.Saved | None = None
        with self.letting_go():
            self.saved = None if folder is None else disk.load(folder, scheme)
            if self.saved is not None:
                self._take_over(self.saved, settings)
        coordinator = self.coordinator
        moments = coordinator.ledger.moments
        known = coordinator.ledger.ids_of(np.flatnonzero(moments.known))
        widths = dict.fromkeys(known, moments.width or 0)
        self._reader = Reader(scheme.name, coordinator.policy.needs, host.remedies, host.log, widths, loss_key)
        self.courier = Courier(coordinator, self._reader, host.log, reported=clock == "reported")
        self._reader.outvoted = self.courier.forget_moments
        self.presence = Presence(coordinator, self._reader, host.log, forget_seconds)
        self.shared: SharedModel | None = None
        """The current model, from when `share` was first called."""
        self._next: tuple[Task, ...] = ()
        """Tasks that were decided along with the last step."""
        self._ended = coordinator.now

    # -- what hosts call -------------------------------------------------------------------------------------

    def share(self, arrays: Arrays) -> SharedModel:
        """Return the shared model, which holds `arrays` now; its server step goes on where it was."""
        if self.shared is None:
            self.shared = SharedModel(arrays, self.rule)
            self._reader.sketch = UpdateSketch(arrays, self.width, seed=self.coordinator.settings.seed)
            if self.saved is not None:
                self.shared.load_state(self.saved.facts.get("server", {}), self.saved.own)
        self.shared.arrays = {key: np.array(array) for key, array in arrays.items()}
        self.courier.models[self.coordinator.step] = self.shared.arrays
        return self.shared

    def next_step(self, transport: Transport, available: Iterable[str]) -> Step | None:
        """Carry tasks out and bring replies back until the model is to step; None = there is nobody to ask."""
        here = list(available)
        if self._lock is not None:
            self._lock.acquire()
        self.courier.send(transport, self._next)
        self._next = ()
        while True:
            self.courier.take_in(transport)
            with self._fitting():
                due = self.coordinator.due(self.courier.now, here)
            if due.step is not None:
                self._next = due.tasks
                return self._screened(due.step)
            if due.tasks:
                self._say(due)
                self.courier.send(transport, due.tasks)
                self.coordinator.wait_at_least(self.courier.latency)
            elif self.coordinator.tasks:
                self.courier.pass_time(transport)
            else:
                return None

    def answers(self, step: Step) -> list[tuple[float, Arrays, Reply]]:
        """Return weight, model that was sent, and reply, of all that make a step."""
        models, replies = self.courier.models, self.courier.replies
        return [(weight, models[task.step], replies[task.id]) for task, weight in step.answers]

    def stepped(self, step: Step, model: Arrays, *, moved: bool, own: Any = None, facts: Any = None) -> Round:
        """Go on after a step, and save it.

        Args:
            step: which was made.
            model: as it is now.
            moved: whether the server step was taken.
            own: arrays that the host keeps for itself.
            facts: what else it remembers, as JSON.
        """
        losses = [reply.loss for _, _, reply in self.answers(step) if not math.isnan(reply.loss)]
        with self._fitting():
            turn = self.coordinator.stepped(seconds=self.courier.waited if self.coordinator.policy.rounds else None)
        self.courier.models[self.coordinator.step] = model
        self.courier.tidy()
        stepping = step_facts(self.shared.state) if moved and self.shared is not None else {}
        name = self.coordinator.ledger.ids
        failures, self.courier.failures = self.courier.failures, {}
        measured = {
            "number": self.coordinator.step,
            "clock": self.coordinator.now,
            "overhead": max(0.0, turn.began - self._ended),
            "metric": None,
            "loss": None,
            "train_loss": float(np.mean(losses)) if losses else None,
            **traffic(turn, sum(np.asarray(array).nbytes for array in model.values())),
            "facts": {
                **turn.why.facts,
                "reasons": {str(name[row]): reason for row, reason in turn.why.reasons.items()},
                **({"failures": failures} if failures else {}),
            },
        }
        entry = gathered(Round, measured, stepping, vars(turn), vars(turn.why))
        self._ended = self.coordinator.now
        if self._folder is not None and self._diary is not None:
            scalars, vectors = ({}, {}) if self.shared is None else self.shared.saved_state()
            remembered = {"server": scalars, **(facts or {})}
            self._diary.flush()
            disk.save(self._folder, disk.Saved(self.coordinator, model, entry, remembered, {**(own or {}), **vectors}))
            self._diary.add(entry)
        return entry

    def evaluated(self, metrics: Mapping[str, Any]) -> None:
        """Record what the server's own evaluation of the last round said."""
        if self._diary is not None:
            self._diary.evaluated(metrics)

    def close(self, status: str = "interrupted") -> None:
        """End the sitting: the folder may be gone on with."""
        if self._diary is not None:
            self._diary.close(status)
        if self._lock is not None:
            self._lock.release()

    # -- inside ----------------------------------------------------------------------------------------------

    @contextmanager
    def letting_go(self) -> Iterator[None]:
        """Inside, an error lets others have the folder: in a notebook it may live for long."""
        try:
            yield
        except BaseException:
            if self._lock is not None:
                self._lock.release()
            raise

    def _screened(self, step: Step) -> Step:
        """Refuse updates that are many times as long as the others'."""
        came = [(reply.model or {}, sent) for _, sent, reply in self.answers(step)]
        times = self.coordinator.screen(lambda: (flat_update(trained, sent) for trained, sent in came))
        if not times:
            return step
        words = "its update is {:.3g} times as long as is usual, which is refused"
        return self.courier.refuse({task: words.format(times[task.id]) for task, _ in step.answers if task.id in times})

    def _say(self, due: Due) -> None:
        """Log who is asked for what."""
        kinds = {"train": "train", "measure": "only report", "probe": "are asked first"}
        for kind, words in kinds.items():
            asked = [task for task in due.tasks if task.kind == kind]
            if asked:
                names = ", ".join(f"{t.client} {t.weight:.3g}" if kind == "train" else str(t.client) for t in asked)
                self._log.info("fedpace: %d of %d clients %s: %s", len(asked), len(self.coordinator), words, names)
        if due.tasks[0].kind == "train" and (status := self.coordinator.at.turn.why.status) != "ok":
            self._log.info("fedpace: %s", status)

    @contextmanager
    def _fitting(self) -> Iterator[None]:
        """Inside, a scheme that chooses k of fewer than k clients chooses all of them."""
        policy = self.coordinator.policy
        scheme: Any = getattr(policy, "selector", None)
        if scheme is not None and (scheme.fixed_k or 0) > len(self.coordinator) > 0:
            policy.selector = replace(scheme, k=len(self.coordinator))
        try:
            yield
        finally:
            if scheme is not None:
                policy.selector = scheme

    def _take_over(self, saved: disk.Saved, settings: Settings) -> None:
        """Go on from what was saved; what was asked for must be what is there."""
        found = saved.coordinator.settings
        for name, wanted in vars(settings).items():
            there = getattr(found, name)
            if name not in MAY_CHANGE and there != wanted:
                raise InputError(
                    f"the state in {self._folder} was made with {name} = {there!r}, but {wanted!r} is asked for: give "
                    "the same, or use another folder"
                )
        self.coordinator = saved.coordinator
        self.coordinator.settings = settings
        trust = self.coordinator.ledger.trust
        trust.on, trust.screen.factor = settings.trust, settings.screen
        self.coordinator.abandon()
        if self._diary is not None:
            self._diary.go_on(saved.entry)

    def _info(self, scheme: Any, settings: Settings, host: Host) -> RunInfo:
        return RunInfo(
            label=scheme.name,
            selector=scheme.name,
            options=configuration(scheme),
            seed=settings.seed,
            metric="accuracy",
            direction="up",
            target=None,
            experiment={"name": f"{scheme.name} on {host.name}", "host": host.name, **vars(settings)},
            server={"name": self.rule.name, **configuration(self.rule)},
        )
