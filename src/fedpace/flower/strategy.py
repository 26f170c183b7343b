"""A Flower strategy around a Flower strategy: fedpace chooses and weighs, the inner one does everything else.

Each round the inner strategy makes its messages for all nodes; those of the selected nodes are sent. In the replies the
weight key (`num-examples`) is overwritten with the cohort's weights, and the inner strategy aggregates. The Session is
the simulator's own, so the same reports lead to the same cohorts.

`start` continues after a restart: Flower's own loop always begins at round 1.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedpace.core.checks import above, one_of
from fedpace.core.errors import InputError
from fedpace.core.session import Session, Warmup
from fedpace.core.types import Need, Outcome, ProbeRequest, Selection, Selector, facts_wanted
from fedpace.flower import state as disk
from fedpace.flower.grid import patient
from fedpace.flower.inner import attribute, check_inner, make_selector
from fedpace.flower.memory import Memory
from fedpace.flower.replies import Answer, Waiting, arrive, impose, read_answers, stretch
from fedpace.flower.roster import Roster
from fedpace.flower.wire import ASK_MOMENT

log = logging.getLogger("flwr")

POLL = 1.0
"""Seconds between looks for new nodes."""
PROBE_SECONDS = 600.0
"""How long asked clients may take to evaluate: nobody answering must not stop the training."""
OFFERS = frozenset(Need) - {Need.LABELS}


class PacedStrategy(Strategy):
    """Any Message-API strategy of Flower, with fedpace's choice of nodes and weights. Wrap it around all others.

    Args:
        inner: the strategy; leave its `fraction_train` at 1.
        selector: a scheme's name, or a Selector.
        state: folder where every round is saved, and from which a restarted server goes on; None = nowhere.
        seed: names every random stream of the selection.
        warmup: how nodes of which the scheme knows too little are met: `lazy` (a quota in each cohort) or `full`
            (one round with all of them, which counts as a Flower round and leaves the shared model as it is).
        warmup_quota: see above.
        clock: `server`: time is this machine's, and deadlines are waited for. `reported`: time is what clients report,
            as with delay models in a simulation: nobody really waits, and who reports more than the deadline is late.
        deadline: seconds that a cohort is waited for, whatever the scheme says.
        loss_key: metric with the client's training loss; empty = train_loss, train-loss or loss.
        moments_every: ask a client for its feature moment again after so many selections; 0 = once.
        sketch: entries of an update's sketch, for schemes that compare updates.
        name_seconds: how long a new node may take to say its name; 0 = call nodes by their ids.
        options: of the scheme, where it is given by name; one that is called as an argument above needs a Selector.
    """

    def __init__(
        self,
        inner: Strategy,
        selector: str | Selector[Any] = "delayhet-submodular",
        *,
        state: str | Path | None = None,
        seed: int = 0,
        warmup: Warmup = "lazy",
        warmup_quota: int = 5,
        clock: Literal["server", "reported"] = "server",
        deadline: float = math.inf,
        loss_key: str = "",
        moments_every: int = 1,
        sketch: int = 256,
        name_seconds: float = 120.0,
        **options: Any,
    ) -> None:
        one_of(clock, ("server", "reported"), "clock")
        above(deadline, 0, "deadline")
        scheme = make_selector(selector, options)
        settings = {"seed": seed, "warmup": warmup, "warmup_quota": warmup_quota}
        self.inner = inner
        self.clock = clock
        self._deadline, self._loss_key = deadline, loss_key
        self._weight_key = str(attribute(inner, "weighted_by_key", "num-examples"))
        self._array_key = str(attribute(inner, "arrayrecord_key", "arrays"))
        self._config_key = str(attribute(inner, "configrecord_key", "config"))
        check_inner(inner)
        self.session = Session(scheme, seed=seed, warmup=warmup, warmup_quota=warmup_quota, offers=OFFERS)
        self._folder = None if state is None else Path(state)
        self._done = 0
        self._saved_arrays: ArrayRecord | None = None
        self._memory = Memory(moments_every, sketch)
        if self._folder is not None and (saved := disk.load(self._folder, scheme, inner)) is not None:
            self._take_over(saved, settings)
        self._roster = Roster(name_seconds, self._config_key)
        self._nodes: dict[str, int] = {}
        self._current: dict[str, Any] = {}
        self._arrays: ArrayRecord | None = self._saved_arrays
        self._messages: dict[str, Message] = {}
        self._began = time.monotonic() - self.session.now
        self._sent = self._began

    # -- the loop --------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run until `num_rounds` rounds are done in all, those before a restart included."""
        done = self._done
        arrays = initial_arrays if self._saved_arrays is None else self._saved_arrays
        if done:
            log.info("fedpace: %d rounds are saved in %s: going on with round %d", done, self._folder, done + 1)
        if done >= num_rounds:
            result = Result()
            result.arrays = arrays
            return result
        self._began = time.monotonic() - self.session.now
        shifted = None if evaluate_fn is None else lambda number, record: evaluate_fn(number + done, record)
        result = super().start(
            patient(grid, self._patience),
            arrays,
            num_rounds - done,
            timeout,
            train_config,
            evaluate_config,
            shifted,
        )
        for history in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
            setattr(result, history, {number + done: value for number, value in getattr(result, history).items()})
        return result

    def summary(self) -> None:
        """Log what chooses, and what does the rest."""
        log.info("\t├──> fedpace chooses nodes and weights by %s", self.session.selector)
        self.inner.summary()

    # -- training --------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose this round's nodes among those that the inner strategy would use."""
        self._wait_for_nodes(grid)
        self._arrays = arrays
        self._current = {key: array.numpy().copy() for key, array in arrays.items()}
        offered = {
            message.metadata.dst_node_id: message
            for message in self.inner.configure_train(server_round + self._done, arrays, config, grid)
        }
        self._nodes = self._roster.names(offered, grid)
        self._messages = {}
        if not self._nodes:
            log.warning("fedpace: none of the %d nodes said who it is: this round is skipped", len(offered))
            return []
        known = set(self.session.clients)
        # Ordered by name, short ones first: the inner strategy shuffles nodes, and rows must not depend on that.
        new = sorted((name for name in self._nodes if name not in known), key=lambda name: (len(name), name))
        self.session.join(new)
        here = list(self._nodes)
        request = self.session.probe(now=self._time(), available=here)
        if request is not None:
            self._answer(request, arrays, config, grid)
        selection = self.session.select(now=self._time(), available=here)
        names = [str(name) for name in selection.clients]
        self._messages = {name: self._asking(offered[self._nodes[name]], name) for name in names}
        log.info(
            "fedpace: %s of %d nodes%s: %s",
            len(names),
            len(here),
            " (warm-up)" if selection.warmup else "",
            ", ".join(f"{name} {weight:.3g}" for name, weight in zip(names, selection.weights, strict=True)),
        )
        self._sent = time.monotonic()
        return list(self._messages.values())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Report what came back, and let the inner strategy aggregate with the cohort's weights."""
        selection = self.session.pending
        came = list(replies)
        if selection is None:
            return None, None
        elapsed = time.monotonic() - self._sent
        answers, broken = read_answers(
            came,
            {self._nodes[name]: name for name in self._messages},
            Waiting({name: message.metadata.created_at for name, message in self._messages.items()}, elapsed),
            weight_key=self._weight_key,
            loss_key=self._loss_key,
        )
        finished, end = answers, elapsed
        missing = set(self._messages) - {answer.name for answer in answers} - broken
        late = dict.fromkeys(missing, elapsed)
        if self.clock == "reported":
            in_time, end = arrive(answers, min(selection.deadline, self._deadline), selection.enough)
            finished = [answer for answer in answers if answer.name in in_time]
            late = {answer.name: end for answer in answers if answer.name not in in_time}
        elif sum(reply.metadata.src_node_id not in self._nodes.values() for reply in came) >= len(missing):
            late = {}  # Everybody missing was reported dead by the SuperLink: nobody is merely slow.
        self._observe(selection, finished, broken, late, self._time(end))
        metrics: MetricRecord | None = None
        arrays: ArrayRecord | None = None
        if not selection.warmup:
            errors = [reply for reply in came if reply.has_error()]
            arrays, metrics = self._aggregate(server_round + self._done, selection, finished, errors)
        if arrays is not None:
            self._arrays = arrays
        self._save(server_round + self._done, selection, {answer.name for answer in finished}, end)
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Leave evaluation to the inner strategy."""
        return self.inner.configure_evaluate(server_round + self._done, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Leave evaluation to the inner strategy."""
        return self.inner.aggregate_evaluate(server_round + self._done, replies)

    # -- inside ----------------------------------------------------------------------------------------------

    def _time(self, passed: float = 0.0) -> float:
        """Seconds of the session: of this machine since the first start, or those reported."""
        if self.clock == "reported":
            return self.session.now + passed
        return max(self.session.now, time.monotonic() - self._began)

    def _wait_for_nodes(self, grid: Grid) -> None:
        """Wait as Flower does: schemes refuse to choose k of fewer than k clients, and a fleet connects one by one."""
        k = int(getattr(self.session.selector, "k", 0))
        waiting = False
        while len(self.session) < k and (here := len(list(grid.get_node_ids()))) < k:
            if not waiting:
                name = self.session.selector.name
                log.info("fedpace: waiting for nodes: %s chooses %d, and %d are connected", name, k, here)
            waiting = True
            time.sleep(POLL)

    def _patience(self, messages: list[Message]) -> tuple[float, int]:
        selection = self.session.pending
        training = messages and messages[0].metadata.message_type.startswith(MessageType.TRAIN)
        if selection is None or not training or self.clock == "reported":
            return math.inf, 0
        return min(selection.deadline, self._deadline), selection.enough

    def _asking(self, message: Message, name: str) -> Message:
        """Ask for a moment where one is due. The content is shared by all messages, so it is copied first."""
        if Need.MOMENT not in facts_wanted(self.session.selector):
            return message
        due = self._memory.moment_due(name, self.session.step)
        content = RecordDict(dict(message.content.items()))
        for key, config in message.content.config_records.items():
            content[key] = ConfigRecord({**config, ASK_MOMENT: due})
        message.content = content
        return message

    def _answer(self, request: ProbeRequest, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> None:
        """Ask for losses by evaluate messages: the loss at the current model, on the client's evaluation data."""
        scheme = self.session.selector.name
        if request.kind != "loss":
            self.session.abandon()
            raise InputError(
                f"{scheme} asks clients for a gradient, which Flower has no message for: use another scheme"
            )
        content = RecordDict({self._array_key: arrays, self._config_key: config})
        names = {self._nodes[str(client)]: str(client) for client in request.clients}
        replies = grid.send_and_receive(
            [Message(content, dst_node_id=node, message_type=MessageType.EVALUATE) for node in names],
            timeout=PROBE_SECONDS,
        )
        now = Waiting(dict.fromkeys(names.values(), time.time()), 0.0)
        answers, _ = read_answers(replies, names, now, weight_key=self._weight_key, loss_key="")
        losses = {answer.name: answer.loss for answer in answers if not math.isnan(answer.loss)}
        if not losses:
            log.warning("fedpace: %s asks for losses, but no evaluate reply holds one: report `loss`", scheme)
        self.session.answer(losses)

    def _observe(
        self, selection: Selection, finished: list[Answer], broken: set[str], late: dict[str, float], now: float
    ) -> None:
        """Tell the session how everybody settled."""
        outcomes = [self._memory.outcome(answer, self.session, self._current) for answer in finished]
        settled = {answer.name for answer in finished}
        for client in selection.clients:
            if (name := str(client)) not in settled:
                # A crash says nothing about speed; who was waited for in vain takes at least that long.
                seconds = math.nan if name in broken else late.get(name, math.nan)
                outcomes.append(Outcome(name, seconds=seconds, finished=False))
        self.session.observe(outcomes, now=now)

    def _aggregate(
        self, number: int, selection: Selection, finished: list[Answer], errors: list[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the inner strategy aggregate those that finished; who failed leaves its weight to them."""
        weight = {str(name): float(value) for name, value in zip(selection.clients, selection.weights, strict=True)}
        weights = [weight[answer.name] for answer in finished]
        total = sum(weights)
        if total <= 0:
            log.warning("fedpace: nobody whose update counts has answered: the shared model stays as it is")
            return None, None
        replies = [answer.reply for answer in finished]
        impose(replies, weights, self._weight_key)
        if selection.mode == "delta":
            stretch(replies, self._current, total)
        return self.inner.aggregate_train(number, [*replies, *errors])

    # -- saving ----------------------------------------------------------------------------------------------

    def _save(self, number: int, selection: Selection, finished: set[str], seconds: float) -> None:
        if self._folder is None:
            return
        saved = disk.Saved(number, self.session, self._arrays, self._memory.moment_steps, self._memory.moment_width)
        disk.save(self._folder, saved, self.inner)
        names = [str(name) for name in selection.clients]
        disk.append_round(
            self._folder,
            {
                "round": number,
                "step": selection.step,
                "warmup": selection.warmup,
                "clients": names,
                "weights": selection.weights.tolist(),
                "failed": [name for name in names if name not in finished],
                "available": sorted(self._nodes),
                "seconds": seconds,
                "clock": self.session.now,
                "status": selection.why.status,
            },
        )

    def _take_over(self, saved: disk.Saved, settings: dict[str, Any]) -> None:
        """Go on from what was saved; what was asked for must be what is there."""
        for name, wanted in settings.items():
            if (found := getattr(saved.session, name)) != wanted:
                raise InputError(
                    f"the state in {self._folder} was made with {name} = {found!r}, but {wanted!r} is asked for: give "
                    "the same, or use another folder"
                )
        saved.session.abandon()
        self.session = saved.session
        self._done, self._saved_arrays = saved.round, saved.arrays
        self._memory.moment_steps, self._memory.moment_width = dict(saved.moment_steps), saved.moment_width
