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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedpace.core.checks import above, at_least, one_of
from fedpace.core.errors import InputError
from fedpace.core.session import Session, ShareRule, Warmup
from fedpace.core.stepping import ServerStep
from fedpace.core.types import Need, ProbeRequest, Selection, Selector
from fedpace.flower.grid import PatientGrid, patient
from fedpace.flower.inner import attribute, check_inner, has_momentum
from fedpace.flower.own_arrays import own_arrays, put_back
from fedpace.flower.probes import loss_probe, losses, step_probe, steps
from fedpace.flower.replies import Reply, Waiting, arrive, as_average, impose, read_answers
from fedpace.flower.roster import Roster
from fedpace.flower.wire import ASK_LABELS, ASK_MOMENT, ASK_SAMPLES, ASK_TARGETS, asking
from fedpace.hosting.host import Host, Settings, make_selector, make_server
from fedpace.hosting.memory import Memory
from fedpace.server.average import Average

log = logging.getLogger("flwr")

POLL = 1.0
"""Seconds between looks for new nodes."""
PROBE_SECONDS = 600.0
"""How long asked clients may take to answer: nobody answering must not stop the training."""
REMEDIES = {
    Need.MOMENT: "add report_mod(module=...) to the mods of its ClientApp",
    Need.LOSS: "put train_loss into the metrics of its reply",
}


@dataclass
class Awaited:
    """Nodes that a warm-up did not wait for."""

    sent: dict[str, Any] = field(default_factory=dict)
    """The model that they were sent."""
    step: int = 0
    began: float = 0.0
    messages: dict[str, Message] = field(default_factory=dict)
    """Name -> what it was asked."""
    came: dict[str, tuple[float, Reply]] = field(default_factory=dict)
    """Where time is what clients report: name -> when its answer counts as come, and the answer."""


class PacedStrategy(Strategy):
    """Any Message-API strategy of Flower, with fedpace's choice of nodes and weights. Wrap it around all others.

    Args:
        inner: the strategy; leave its `fraction_train` at 1.
        selector: a scheme's name, or a Selector. Clients that do not report what it needs are still trained, a quota
            a round as in a warm-up, and each is named in a warning.
        state: folder where every round is saved, and from which a restarted server goes on; None = nowhere.
        seed: names every random stream of the selection.
        shares: what a client weighs in the objective: `uniform`, or its `samples`, which `report_mod(samples=...)` or
            `labels=` must tell before it first trains.
        warmup: how nodes of which the scheme knows too little are met: `lazy` (a quota in each cohort) or `full`
            (one round with all of them, which counts as a Flower round and leaves the shared model as it is).
        warmup_quota: see above.
        warmup_wait: share of the nodes that a full warm-up waits for; the others are chosen from when they answer.
        clock: `server`: time is this machine's, and deadlines are waited for. `reported`: time is what clients report,
            as with delay models in a simulation: nobody really waits, and who reports more than the deadline is late.
        deadline: seconds that a cohort is waited for, whatever the scheme says.
        loss_key: metric with the client's training loss; empty = train_loss, train-loss or loss.
        moments_every: ask a client for its feature moment again after so many selections; 0 = once.
        sketch: entries of an update's sketch, for schemes that compare updates.
        name_seconds: how long a new node may take to say its name; 0 = call nodes by their ids.
        nodes_seconds: how long the first round waits for as many nodes as the scheme chooses. Then it goes on with
            those that are there, if the inner strategy's `min_available_nodes` are; else it gives up.
        server: the server step, applied to what the inner strategy averaged: a rule, or the name of one; None = what
            the scheme asks for, and nothing where the inner strategy is a server optimiser itself.
        options: of the scheme, where it is given by name; one that is called as an argument above needs a Selector.
    """

    def __init__(
        self,
        inner: Strategy,
        selector: str | Selector[Any] = "pace",
        *,
        state: str | Path | None = None,
        seed: int = 0,
        shares: ShareRule = "uniform",
        warmup: Warmup = "lazy",
        warmup_quota: int = 5,
        warmup_wait: float = 1.0,
        clock: Literal["server", "reported"] = "server",
        deadline: float = math.inf,
        loss_key: str = "",
        moments_every: int = 1,
        sketch: int = 256,
        name_seconds: float = 120.0,
        nodes_seconds: float = 600.0,
        server: str | ServerStep[Any] | None = None,
        **options: Any,
    ) -> None:
        one_of(clock, ("server", "reported"), "clock")
        above(deadline, 0, "deadline")
        at_least(nodes_seconds, 0, "nodes_seconds")
        self.inner = inner
        self.clock = clock
        self._deadline, self._loss_key, self._nodes_seconds = deadline, loss_key, nodes_seconds
        self._weight_key = str(attribute(inner, "weighted_by_key", "num-examples"))
        self._array_key = str(attribute(inner, "arrayrecord_key", "arrays"))
        self._config_key = str(attribute(inner, "configrecord_key", "config"))
        check_inner(inner)
        asked = make_server(server)
        # A server optimiser as the inner strategy is the server step: doing it twice would overshoot.
        self._own_momentum = asked is None and has_momentum(inner)
        self._host = host = Host(
            make_selector(selector, options),
            Settings(seed, shares, warmup, warmup_quota, warmup_wait),
            Memory(moments_every, sketch, REMEDIES, log),
            None if state is None else Path(state),
            log,
            server=Average() if self._own_momentum else asked,
        )
        self._arrays: ArrayRecord | None = None
        if host.saved is not None:
            put_back(inner, host.saved.facts.get("inner", []), host.saved.own)
            if host.saved.model is not None:
                self._arrays = ArrayRecord({key: Array(array) for key, array in host.saved.model.items()})
        questions = {ASK_LABELS: Need.LABELS in host.wanted, ASK_SAMPLES: host.asks_samples}
        self._roster = Roster(name_seconds, self._config_key, questions)
        self._nodes: dict[str, int] = {}
        self._current: dict[str, Any] = {}
        self._messages: dict[str, Message] = {}
        self._awaited = Awaited()
        self._began = time.monotonic() - self.session.now
        self._sent = self._began

    @property
    def session(self) -> Session:
        """The memory of the selection: who is there, and what is known of whom."""
        return self._host.session

    @property
    def _scheme(self) -> str:
        return self.session.selector.name

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
        done = self._host.done
        arrays = initial_arrays if self._arrays is None else self._arrays
        if done:
            log.info("fedpace: %d rounds are saved in %s: going on with round %d", done, self._host.folder, done + 1)
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
            setattr(result, history, {number + done: record for number, record in getattr(result, history).items()})
        return result

    def summary(self) -> None:
        """Log what chooses, and what does the rest."""
        log.info("\t├──> fedpace chooses nodes and weights by %s", self.session.selector)
        if self._own_momentum:
            log.info("\t├──> steps are carried on by %s, not by the scheme", type(self.inner).__name__)
        self.inner.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose this round's nodes among those that the inner strategy would use."""
        self._wait_for_nodes(grid)
        self._hear(grid)
        self._arrays = arrays
        self._current = {key: array.numpy().copy() for key, array in arrays.items()}
        offered = {
            message.metadata.dst_node_id: message
            for message in self.inner.configure_train(server_round + self._host.done, arrays, config, grid)
        }
        here = self._meet(offered, grid)
        self._messages = {}
        if not here:
            log.warning("fedpace: none of the %d nodes said who it is: this round is skipped", len(offered))
            return []
        request = self._host.probe(now=self._time(), available=here)
        if request is not None:
            self._answer(request, offered, grid)
        selection = self._host.select(now=self._time(), available=here)
        names = [str(name) for name in selection.clients]
        self._messages = {name: self._asking(offered[self._nodes[name]], name) for name in names}
        log.info(
            "fedpace: %s of %d nodes%s: %s",
            len(names),
            len(here),
            " (warm-up)" if selection.warmup else "",
            ", ".join(f"{name} {weight:.3g}" for name, weight in zip(names, selection.weights, strict=True)),
        )
        if selection.why.status != "ok":
            log.info("fedpace: %s", selection.why.status)
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
        number = server_round + self._host.done
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
        awaited: set[str] = set()
        if selection.warmup and selection.enough and not self._awaited.messages:
            awaited = set(late)
            self._awaited = Awaited(
                self._current,
                selection.step,
                self._sent,
                {name: self._messages[name] for name in awaited},
                {a.name: (self.session.now + a.seconds, a) for a in answers if a.name in awaited},
            )
        self._host.observe(selection, finished, late, self._current, self._time(end), awaited=awaited)
        metrics: MetricRecord | None = None
        arrays: ArrayRecord | None = None
        if not selection.warmup:
            errors = [reply for reply in came if reply.has_error()]
            arrays, metrics = self._aggregate(number, selection, finished, errors)
        if arrays is not None:
            self._arrays = arrays
        self._save(number, selection, finished, awaited, end)
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Leave evaluation to the inner strategy."""
        return self.inner.configure_evaluate(server_round + self._host.done, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Leave evaluation to the inner strategy."""
        return self.inner.aggregate_evaluate(server_round + self._host.done, replies)

    # -- who is there ----------------------------------------------------------------------------------------

    def _time(self, passed: float = 0.0) -> float:
        """Seconds of the session: of this machine since the first start, or those reported."""
        if self.clock == "reported":
            return self.session.now + passed
        return max(self.session.now, time.monotonic() - self._began)

    def _wait_for_nodes(self, grid: Grid) -> None:
        """Wait for k nodes, as a fleet connects one by one; but not for ever, and later rounds take who is there."""
        k = int(getattr(self.session.selector, "k", 0))
        least = int(attribute(self.inner, "min_available_nodes", 1))
        if len(self.session) >= k:
            return
        end = time.monotonic() + self._nodes_seconds
        said = False
        while (here := len(list(grid.get_node_ids()))) < max(k, least):
            if not said:
                log.info("fedpace: waiting for nodes: %s chooses %d, and %d are connected", self._scheme, k, here)
                said = True
            if time.monotonic() >= end:
                if here < max(1, least):
                    raise InputError(
                        f"{here} nodes are connected after {self._nodes_seconds:g} s, but the inner strategy wants at "
                        f"least {least}: start more SuperNodes, lower its min_available_nodes, or raise nodes_seconds"
                    )
                log.warning(
                    "fedpace: %d nodes are connected after %g s, and %s chooses %d: going on with those that are there",
                    here,
                    self._nodes_seconds,
                    self._scheme,
                    k,
                )
                return
            time.sleep(POLL)

    def _hear(self, grid: Grid) -> None:
        """Take in what nodes say that a warm-up did not wait for."""
        waiting = self._awaited
        if not waiting.messages:
            return
        if self.clock == "reported":
            answers = [answer for when, answer in waiting.came.values() if when <= self.session.now]
            broken: set[str] = set()
        else:
            names = {message.metadata.dst_node_id: name for name, message in waiting.messages.items()}
            created = {name: message.metadata.created_at for name, message in waiting.messages.items()}
            replies = grid.late() if isinstance(grid, PatientGrid) else []
            answers, broken = read_answers(
                replies,
                names,
                Waiting(created, time.monotonic() - waiting.began),
                weight_key=self._weight_key,
                loss_key=self._loss_key,
            )
            # Of a node that is gone the SuperLink says so in its own name.
            failed = {reply.metadata.reply_to_message_id for reply in replies if reply.has_error()}
            broken |= {name for name, message in waiting.messages.items() if message.metadata.message_id in failed}
        told = {answer.name for answer in answers} | broken
        for name in told:
            waiting.messages.pop(name)
            waiting.came.pop(name, None)
        self._host.hear(answers, broken, waiting.sent, self._time())

    def _meet(self, offered: dict[int, Message], grid: Grid) -> list[str]:
        """Let new nodes join, and return the names of those that can be chosen."""
        named = self._roster.names(offered, grid)
        self._host.join({name: self._roster.notes[name] for name in named})
        joined = set(self.session.clients)
        self._nodes = {name: node for name, node in named.items() if name in joined}
        return list(self._nodes)

    # -- what is asked, and what comes back --------------------------------------------------------------------

    def _patience(self, messages: list[Message]) -> tuple[float, int]:
        selection = self.session.pending
        training = messages and messages[0].metadata.message_type.startswith(MessageType.TRAIN)
        if selection is None or not training or self.clock == "reported":
            return math.inf, 0
        return min(selection.deadline, self._deadline), selection.enough

    def _asking(self, message: Message, name: str) -> Message:
        """Ask for a moment where one is due."""
        wanted = self._host.wanted
        if Need.MOMENT not in wanted:
            return message
        due = self._host.moment_due(name)
        return asking(message, **{ASK_MOMENT: due, ASK_TARGETS: due and Need.TARGETS in wanted})

    def _answer(self, request: ProbeRequest, offered: dict[int, Message], grid: Grid) -> None:
        """Ask the clients that the scheme wants to hear before it chooses."""
        names = {self._nodes[str(client)]: str(client) for client in request.clients}
        asks_loss = request.kind == "loss"
        probes = [loss_probe(offered[node]) if asks_loss else step_probe(offered[node], self._host) for node in names]
        replies = grid.send_and_receive(probes, timeout=PROBE_SECONDS)
        now = Waiting(dict.fromkeys(names.values(), time.time()), 0.0)
        answers, _ = read_answers(replies, names, now, weight_key=self._weight_key, loss_key="")
        heard = losses(answers) if asks_loss else steps(answers, self._host, self._current)
        if not heard:
            remedy = "put `loss` into the metrics of evaluate replies" if asks_loss else "see the clients' logs"
            log.warning("fedpace: %s asks for a %s, but nobody told one: %s", self._scheme, request.kind, remedy)
        self.session.answer(heard)

    def _aggregate(
        self, number: int, selection: Selection, finished: list[Reply], errors: list[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the inner strategy aggregate those that finished; who failed leaves its weight to them."""
        weight = {str(name): float(value) for name, value in zip(selection.clients, selection.weights, strict=True)}
        weights = [weight[answer.name] for answer in finished]
        if not any(weights):
            log.warning("fedpace: nobody whose update counts has answered: the shared model stays as it is")
            return None, None
        replies, models = [answer.message for answer in finished], [answer.trained() for answer in finished]
        if selection.mode == "delta":
            weights = as_average(replies, self._current, weights)
        impose(replies, weights, self._weight_key)
        arrays, metrics = self.inner.aggregate_train(number, [*replies, *errors])
        if arrays is None or self._host.rule == Average():
            return arrays, metrics
        averaged = {key: array.numpy() for key, array in arrays.items()}
        after = self._host.share(self._current).carry_on(averaged, zip(weights, models, strict=True))
        return ArrayRecord({key: Array(array) for key, array in after.items()}), metrics

    def _save(
        self, number: int, selection: Selection, finished: list[Reply], awaited: set[str], seconds: float
    ) -> None:
        own, layout = own_arrays(self.inner)
        self._host.save(
            number,
            selection,
            finished=[answer.name for answer in finished],
            awaited=awaited,
            available=self._nodes,
            seconds=seconds,
            model=None if self._arrays is None else {key: array.numpy() for key, array in self._arrays.items()},
            own=own,
            facts={"inner": layout},
        )
