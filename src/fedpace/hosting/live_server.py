"""The live server: a coordinator together with model versions, a clock and a state folder.

    while (step := server.next_step(transport, available)) is not None:
        moved = server.apply(step)               # or aggregate server.bounded(step) yourself
        server.stepped(step, server.shared.arrays, moved=moved, transport=transport)

A transport sends tasks and returns replies (`fedpace.flower`, `fedpace.nvflare`). As in the simulator, the coordinator
decides which clients start, when a round ends and how much a stale reply counts.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy import optimize, special  # noqa: F401  (import them now, not in the middle of a run)

from fedpace._base import registry
from fedpace._base.checks import at_least, bare, check_options, one_of
from fedpace._base.errors import InputError, terminable
from fedpace.core.aggregation import check_robust
from fedpace.core.coordinator import Coordinator
from fedpace.core.server_rule import ServerRule, step_facts, step_notes
from fedpace.core.settings import Settings
from fedpace.core.step_bounds import NOT_FINITE
from fedpace.core.sums import SumRule
from fedpace.core.tasks import Actions, Step, Task
from fedpace.core.types import Need
from fedpace.hosting.aggregator import TrustedAggregator
from fedpace.hosting.replies import Arrays, Reply, UpdateSketch
from fedpace.hosting.reply_loop import FORGET_SECONDS, Membership, ReplyLoop, ReplyReader, Transport
from fedpace.hosting.shared_model import ArraysValidation, SharedModel
from fedpace.hosting.state_folder import Readmissions, Saved, StateFolder, run_info
from fedpace.records.run import Round, recorded
from fedpace.server import server_step
from fedpace.server._client_memory import sum_rule
from fedpace.tracking import make_trackers
from fedpace.trust.robust import RobustRule, make_robust


def make_server(server: str | ServerRule[Any] | None) -> ServerRule[Any] | None:
    """Return the server step with this name, or the given object; None stays None (the default of the scheme)."""
    return registry.servers[server]() if isinstance(server, str) else server


LIVE_DEFAULTS = Settings(warmup="full", warmup_wait=0.5, warmup_trains=True, hear_late=True)
"""Settings of a live server. All clients train in the first round, and it ends when half of them have answered."""


def live_settings(given: Settings | Mapping[str, Any] | None, options: dict[str, Any]) -> Settings:
    """Return the settings of a live server, and remove the fields of Settings from `options`.

    Args:
        given: settings from the user, or some fields of them; None = the defaults of live servers.
        options: keyword arguments from the user: fields of Settings, which override `given`, and other options.
    """
    names = {field.name for field in fields(Settings)}
    keywords = {name: options.pop(name) for name in list(options) if name in names}
    if isinstance(given, Mapping):
        check_options(Settings, given, "settings")
        given = replace(LIVE_DEFAULTS, **given)
    elif given is not None and not isinstance(given, Settings):
        raise InputError(f"settings must be a fedpace.Settings, but a {type(given).__name__} came")
    # No framework can stop a client in mid-task.
    return replace(LIVE_DEFAULTS if given is None else given, **keywords, hear_late=True)


def make_selector(selector: Any, options: Mapping[str, Any], arguments: Iterable[str] = ()) -> Any:
    """Return the scheme with this name and these options, or the given object.

    Args:
        selector: a name, a Selector or a Policy.
        options: options of the scheme; only with a name.
        arguments: the caller's own argument names, which the hint for a misspelt option may suggest too.
    """
    if not isinstance(selector, str):
        if options:
            raise InputError(f"{sorted(options)} came beside a ready selector: give options with a scheme's name only")
        return selector
    kind: Any = registry.selectors[selector]
    others = [*arguments, *(field.name for field in fields(Settings))]
    check_options(kind, options, selector, others=others)
    return kind(**options)


@dataclass
class Spent:
    """Time spent on one kind of work."""

    times: int = 0
    seconds: float = 0.0
    """Wall-clock seconds, including the wait for a free core."""
    work: float = 0.0
    """CPU seconds of the thread."""
    longest: float = 0.0
    """Largest wall-clock seconds of one call."""
    most_work: float = 0.0
    """Largest CPU seconds of one call."""


class Stopwatch:
    """Adds up seconds by kind of work: `with watch("saving"): ...`."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, Spent] = defaultdict(Spent)

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        """Context manager: add the time spent inside to the kind of work `what`."""
        began, worked = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            seconds, work = time.perf_counter() - began, time.thread_time() - worked
            spent = self.spent[what]
            spent.times += 1
            spent.seconds += seconds
            spent.work += work
            spent.longest = max(spent.longest, seconds)
            spent.most_work = max(spent.most_work, work)

    def __str__(self) -> str:
        """All kinds of work in one line, the longest first; in brackets, total and largest CPU time of one call."""
        parts = sorted(self.spent.items(), key=lambda part: -part[1].seconds)
        return ", ".join(
            f"{what} {s.seconds:.2f} s in {s.times} ({s.work:.2f} s of work, {1000 * s.most_work:.1f} ms at the most)"
            for what, s in parts
        )


Clock = Literal["server", "reported"]


@dataclass(frozen=True)
class Host:
    """Describes the framework that runs the server.

    Args:
        name: name of the framework, for the records.
        log: logger for warnings.
        remedies: fact -> advice for a client that does not send this fact although the scheme needs it.
        offers: facts that clients of the framework can report, and `Need.WORK` if they train as much as tasks say.
    """

    name: str
    log: logging.Logger
    remedies: Mapping[Need, str]
    offers: frozenset[Need] = frozenset(Need) - {Need.WORK}

    def accepting(self, *, work: bool) -> Host:
        """Return the same host; its clients train as much as tasks say, or all the same."""
        return replace(self, offers=self.offers | {Need.WORK} if work else self.offers - {Need.WORK})


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
        track: experiment trackers, as names or objects (`fedpace.tracking`).
        secure: a trusted aggregator, for which clients seal their updates; the server then sees sums only.
        encrypted: clients encrypt their updates, and the host adds them up without reading them. It does not call
            `apply`, and sets `shared.arrays` itself.
    """

    def __init__(
        self,
        scheme: Any,
        settings: Settings,
        host: Host,
        *,
        clock: Clock = "server",
        folder: Path | None = None,
        rule: ServerRule[Any] | None = None,
        robust: RobustRule | str | None = None,
        validation: ArraysValidation | None = None,
        sketch: int = 256,
        loss_key: str = "",
        forget_seconds: float = FORGET_SECONDS,
        track: Any = None,
        secure: TrustedAggregator | None = None,
        encrypted: bool = False,
    ) -> None:
        one_of(clock, ("server", "reported"), "clock")
        at_least(sketch, 0, "sketch")
        settings = live_settings(settings, {})
        if scheme.first_moments:
            settings = replace(settings, moments_every=0)
        self._fixed_k: int | None = scheme.fixed_k
        self.secure = secure
        self.rule = server_step(scheme, rule)
        if secure is not None:
            settings = replace(settings, aggregation="sums", minimum=secure.minimum)
            self.rule = sum_rule(self.rule, noisy=secure.privacy.epsilon > 0)
            secure.memory = isinstance(self.rule, SumRule)
        if encrypted:
            settings = replace(settings, aggregation="sums")
        if secure is not None or encrypted:
            host = replace(host, offers=host.offers - {Need.UPDATE, Need.WORK, Need.LOSS})
            if robust is not None:
                raise InputError("a robust rule compares single updates, but the server sees sums only: leave it out")
        elif settings.aggregation == "sums":
            raise InputError(
                "this server gets the update of every client, but aggregation = 'sums' was asked for: give it "
                "secure=fedpace.TrustedAggregator(...), or use fedpace.flower.SecureRounds"
            )
        self._robust = make_robust(robust) if isinstance(robust, str) else robust
        self._validation = validation
        check_robust(self._robust, validation)
        self.coordinator = Coordinator(scheme, settings, offers=host.offers)
        self.width = sketch
        self._log = host.log
        settings = self.coordinator.settings
        self.files = StateFolder(
            folder,
            lambda: run_info(scheme, settings, self.rule, host.name, clock, self._robust),
            make_trackers(track),
        )
        self.saved = self.files.load(scheme, settings, host.offers)
        if self.saved is not None:
            self.coordinator = self.saved.coordinator
        coordinator = self.coordinator
        self._reader = ReplyReader(coordinator, host.remedies, host.log, loss_key)
        self._reader.sealed = secure is not None or encrypted
        self._loss: float | None = None
        """Mean training loss of the last sum."""
        self.loop = ReplyLoop(coordinator, self._reader, host.log, reported=clock == "reported")
        if self.saved is not None:
            self.loop.restore_unseen(self.saved.unseen)
        self.membership = Membership(coordinator, self._reader, host.log, forget_seconds)
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
            self.shared = SharedModel(
                arrays, self.rule, robust=self._robust, validation=self._validation, sums=self.coordinator.sums
            )
            self._reader.sketch = UpdateSketch(self.shared.arrays, self.width, seed=self.coordinator.settings.seed)
            if self.saved is not None:
                self.shared.load_state(self.saved.extra.get("server", {}), self.saved.extra_arrays)
                if self.secure is not None and "secure" in self.saved.extra:
                    self.secure.load(self.saved.extra["secure"], self.saved.extra_arrays)
        self.shared.arrays = {key: np.array(array) for key, array in arrays.items()}
        self.loop.models[self.coordinator.step] = self.shared.arrays
        return self.shared

    def next_step(self, transport: Transport, available: Iterable[str] | Callable[[], Iterable[str]]) -> Step | None:
        """Send tasks and collect replies until a step is due, and return that step; None = no client can be asked.

        Args:
            transport: sends tasks and collects replies.
            available: the connected clients, or a function that returns them and is called repeatedly.
        """
        fixed = None if callable(available) else list(available)
        spent = set() if self.secure is None else self.secure.spent
        self.files.start()
        self._readmissions.carry_out(self.coordinator)
        self._send(transport, self._next)
        # Without rounds, use the answers in hand at once if they suffice: under load they would grow stale while more
        # replies are read. Rounds read replies first, so that stragglers are known before the next choice.
        at_once = not (self.coordinator.policy.rounds or self.loop.reported) and self.coordinator.wait_is_over
        while True:
            if not at_once:
                with self.watch("reading replies"):
                    self.loop.read_replies(transport)
            at_once = False
            present = available() if callable(available) else fixed
            if spent:  # their privacy budget
                self.coordinator.leave([client for client in self.coordinator.clients if client in spent])
                present = [client for client in present or () if client not in spent]
            with self.watch("deciding"), self._fitting():
                due = self.coordinator.due(self.loop.now, present)
            if due.step is not None:
                self._next = due.tasks
                return due.step
            if due.tasks:
                self._say(due)
                self._send(transport, due.tasks)
                if self.coordinator.policy.rounds:  # the waits of other policies already include the latency
                    self.coordinator.wait_at_least(self.loop.latency)
            elif self.coordinator.tasks:
                with self.watch("waiting"):
                    self.loop.wait(transport)
            else:
                return None

    def answers(self, step: Step) -> list[tuple[float, Arrays, Reply]]:
        """Return (weight, model that was sent, reply) for each answer of a step."""
        models, replies = self.loop.models, self.loop.replies
        return [(weight, models[task.step], replies[task.id]) for task, weight in step.answers]

    def apply(self, step: Step) -> bool:
        """Make a step with the server rule, and return whether the model changed."""
        if self.secure is not None:
            with self.watch("opening sums"):
                for task, _ in step.answers:
                    self.secure.receive(task.id, self.loop.replies[task.id].sealed)
                opened = self.shared.apply_sums(self.coordinator, step, self.secure)
            self._loss = opened.loss
            return opened.moved
        with self.watch("stepping"):
            steps = {task.id: self.loop.replies[task.id].steps for task, _ in step.answers}
            applied = self.shared.apply(self.coordinator, step, *self._models(step), steps, consume=True)
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
        models, replies = self.loop.models, self.loop.replies
        tasks = [task for task, _ in step.answers]
        return {t.id: replies[t.id].model or {} for t in tasks}, {t.id: models[t.step] for t in tasks}

    def _drop_lost(self, step: Step, left: Step) -> None:
        """Drop the replies of `step` that are not in `left`, because they are not finite."""
        for task in {task for task, _ in step.answers} - {task for task, _ in left.answers}:
            self.loop.drop(task, NOT_FINITE)

    def stepped(
        self,
        step: Step,
        model: Arrays,
        *,
        moved: bool,
        extra_arrays: Any = None,
        extra: Any = None,
        transport: Transport | None = None,
    ) -> Round:
        """Record that a step was made, send the next tasks, save the state, and return the record of the round.

        Args:
            step: the step that was made.
            model: the model after the step.
            moved: whether the server rule changed the model.
            extra_arrays: further arrays of the host to save.
            extra: further JSON values of the host to save.
            transport: sends the next tasks before the state is saved, so that clients do not wait for the disk; None =
                `next_step` sends them.
        """
        held = [self.loop.replies.get(task.id) for task, _ in step.answers]  # None = refused
        losses = [reply.loss for reply in held if reply is not None and not math.isnan(reply.loss)]
        losses += [] if self._loss is None else [self._loss]
        stepping = step_facts(self.shared.state)
        before = set(self.coordinator.progress.excluded)
        with self.watch("settling"), self._fitting():
            seconds = self.loop.events.waited if self.coordinator.policy.rounds else None
            turn = self.coordinator.stepped(seconds=seconds, facts=stepping)
        for client in sorted({*(turn.excluded or ())} - before):
            self._log.info(
                "fedpace: %r is excluded for a while: the validation set refused its updates. %s takes that back",
                client,
                self._readmissions.remedy(client),
            )
        for client, factor in turn.clipped.items():
            self._log.info("fedpace: the update of %r was clipped to %.2g of its length", client, factor)
        self.loop.models[self.coordinator.step] = model
        self.loop.discard_unused()
        if transport is not None:
            self._send(transport, self._next)
        entry = recorded(
            self.coordinator,
            turn,
            since=self._ended,
            losses=losses,
            model_bytes=sum(np.asarray(array).nbytes for array in model.values()),
            stepping=stepping if moved else {},
            notes=step_notes(self.shared.state) if moved else {},
        )
        self._ended = self.coordinator.now
        with self.watch("saving"):
            scalars, vectors = self.shared.saved_state()
            remembered = {"server": scalars, **(extra or {})}
            arrays = {**(extra_arrays or {}), **vectors}
            if self.secure is not None:
                self.secure.keep(self.loop.replies)
                remembered["secure"], references = self.secure.saved()
                arrays |= references
            self.files.save(Saved(self.coordinator, model, entry, remembered, arrays, self.loop.unseen))
            self._readmissions.saved()
        return entry

    @contextmanager
    def run_context(self) -> Iterator[None]:
        """Context manager for a run of the server: at its end it records the status and logs the time spent."""
        self.files.start()
        status = "interrupted"
        try:
            with terminable():
                yield
            status = "finished"
        finally:
            self.files.close(status)
            self._log.info("fedpace: where the server's time went: %s", self.watch)

    @property
    def exhausted(self) -> bool:
        """Whether too few clients have any privacy budget left for another sum."""
        spent = set() if self.secure is None else self.secure.spent
        left = [client for client in self.coordinator.clients if client not in spent]
        return bool(spent) and len(left) < self.coordinator.settings.minimum

    # -- helpers ---------------------------------------------------------------------------------------------

    def _send(self, transport: Transport, tasks: tuple[Task, ...]) -> None:
        with self.watch("sending"):
            self.loop.send(transport, tasks)
        self._next = ()

    def _say(self, due: Actions) -> None:
        """Log which clients get which tasks; without rounds, where tasks have no weight, only for debugging."""
        kinds = {"train": "train", "measure": "measure", "probe": "are probed"}
        for kind, words in kinds.items():
            asked = [task for task in due.tasks if task.kind == kind]
            if asked:
                weighted = any(task.weight for task in asked)
                names = ", ".join(bare(t.client) + (f" {t.weight:.3g}" if weighted else "") for t in asked)
                of, step, scheme = len(self.coordinator), self.coordinator.step + 1, self.coordinator.policy.name
                self._log.log(
                    logging.INFO if weighted or kind != "train" else logging.DEBUG,
                    "fedpace: %s, step %d: %d of %d clients %s: %s",
                    *(scheme, step, len(asked), of, words, names),
                )
        if due.tasks[0].kind == "train" and (status := self.coordinator.log.why.status) != "ok":
            self._log.info("fedpace: %s", status)

    @contextmanager
    def _fitting(self) -> Iterator[None]:
        """Context manager: inside it, a scheme with k above the number of clients uses k = that number."""
        policy = self.coordinator.policy
        if self._fixed_k and 0 < (clients := len(self.coordinator)) < self._fixed_k:
            scheme: Any = getattr(policy, "selector", policy)
            smaller = replace(scheme, k=clients)
            self.coordinator.policy = smaller if scheme is policy else policy.of(smaller)
        try:
            yield
        finally:
            self.coordinator.policy = policy
