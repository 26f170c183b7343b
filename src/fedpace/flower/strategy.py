"""A Flower strategy around a Flower strategy: fedpace chooses and weighs, the inner one does everything else.

A round of Flower's is a step of the coordinator's. `configure_train` lets the inner strategy make its messages for all
nodes, sends those of the chosen ones, and returns when the round has ended: nothing is left for Flower to send. In
`aggregate_train` the weight key (`num-examples`) of the replies is overwritten with the cohort's weights, and the inner
strategy aggregates. The coordinator is the simulator's own, so the same reports lead to the same cohorts.

`start` continues after a restart: Flower's own loop always begins at round 1.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedpace.core.checks import at_least
from fedpace.core.coordinator import Coordinator
from fedpace.core.roster import Settings, ShareRule, Warmup
from fedpace.core.stepping import ServerStep
from fedpace.core.tasks import Policy, Step
from fedpace.core.types import Need, Selector
from fedpace.flower.averaging import evaluations, messages
from fedpace.flower.inner import attribute, check_inner, has_momentum
from fedpace.flower.own_arrays import own_arrays, put_back
from fedpace.flower.roster import Eligible, Roster, eligibility, wait_for_nodes
from fedpace.flower.transport import Messages
from fedpace.flower.wire import ASK_LABELS, ASK_SAMPLES
from fedpace.hosting.presence import FORGET
from fedpace.hosting.schemes import make_selector, make_server
from fedpace.hosting.server import SCREEN, Clock, Host, Server
from fedpace.hosting.shared_model import SharedModel
from fedpace.server.average import Average

log = logging.getLogger("flwr")

REMEDIES = {
    Need.MOMENT: "add report_mod(module=...) to the mods of its ClientApp",
    Need.LOSS: "put train_loss into the metrics of its reply",
    Need.LABELS: "give report_mod labels=",
}


class PacedStrategy(Strategy):
    """Any Message-API strategy of Flower, with fedpace's choice of nodes and weights. Wrap it around all others.

    Args:
        inner: the strategy; leave its `fraction_train` at 1.
        selector: a scheme's name, a Selector, or a Policy (which may do without rounds). Clients that do not report
            what it needs are still asked, a quota per round as in a warm-up, and each is named in a warning.
        state: folder where every round is saved and recorded (`fedpace report` reads it), and from which a restarted
            server goes on; None = nowhere.
        seed, warmup, warmup_quota, warmup_wait, warmup_trains, moments_every: as of `fedpace.Settings`.
        shares: as there; `samples` are what `report_mod(samples=...)` or `labels=` tell before a node first trains.
        clock: `server`: time is this machine's, from sending a message to seeing its reply. `reported`: time is what
            clients report, as with delay models in a simulation, and nobody really waits.
        deadline: seconds that a cohort is waited for, whatever the scheme says; never with empty hands while somebody
            may still answer.
        loss_key: metric with the client's training loss; empty = train_loss, train-loss or loss.
        sketch: entries of an update's sketch, for schemes that compare updates.
        screen: refuse updates longer than this many times the usual one; 0 = none. See docs/flower.md.
        forget_seconds: clients that were not connected for so long are forgotten; those without a name after 600 s.
        eligible: names of the clients that may be chosen, or a function that says of a name whether it may, asked anew
            in every round; None = everybody.
        bind_names: a name belongs to the node id that first gave it, for good. Switch it on where the SuperLink
            authenticates SuperNodes, whose ids then stay; elsewhere a node that reconnects has another id.
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
        selector: str | Selector[Any] | Policy[Any] = "pace",
        *,
        state: str | Path | None = None,
        seed: int = 0,
        shares: ShareRule = "uniform",
        warmup: Warmup = "lazy",
        warmup_quota: int = 5,
        warmup_wait: float = 1.0,
        warmup_trains: bool = True,
        clock: Clock = "server",
        deadline: float = math.inf,
        loss_key: str = "",
        moments_every: int = 1,
        sketch: int = 256,
        screen: float = SCREEN,
        forget_seconds: float = FORGET,
        eligible: Eligible = None,
        bind_names: bool = False,
        name_seconds: float = 120.0,
        nodes_seconds: float = 600.0,
        server: str | ServerStep[Any] | None = None,
        **options: Any,
    ) -> None:
        at_least(nodes_seconds, 0, "nodes_seconds")
        check_inner(inner)
        self._scheme = make_selector(selector, options, inspect.signature(PacedStrategy).parameters)
        settings = Settings(
            seed=seed,
            shares=shares,
            warmup=warmup,
            warmup_quota=warmup_quota,
            warmup_wait=warmup_wait,
            warmup_trains=warmup_trains,
            deadline=deadline,
            moments_every=moments_every,
        )
        rule = make_server(server)
        if rule is None and has_momentum(inner):
            rule = Average()  # a server optimiser is the server step: doing it twice would overshoot
        self.inner = inner
        self._server = Server(
            self._scheme,
            settings,
            Host("flower", log, REMEDIES),
            clock=clock,
            folder=None if state is None else Path(state),
            rule=rule,
            sketch=sketch,
            loss_key=loss_key,
            screen=screen,
            forget_seconds=forget_seconds,
        )
        self._nodes_seconds = nodes_seconds
        self._eligible = eligibility(eligible)
        self._weight_key = str(attribute(inner, "weighted_by_key", "num-examples"))
        self._array_key = str(attribute(inner, "arrayrecord_key", "arrays"))
        self._arrays: ArrayRecord | None = None
        if (saved := self._server.saved) is not None:
            with self._server.letting_go():
                put_back(inner, saved.facts.get("inner", []), saved.own)
            self._arrays = _record(saved.model)
        self._before = self.coordinator.step
        """Rounds that were made before this server started."""
        questions = {ASK_LABELS: Need.LABELS in self.coordinator.wanted, ASK_SAMPLES: shares == "samples"}
        owners = {} if saved is None else {str(name): int(node) for name, node in saved.facts.get("names", {}).items()}
        config_key = str(attribute(inner, "configrecord_key", "config"))
        self._roster = Roster(name_seconds, config_key, questions, owners if bind_names else None)
        self._messages = Messages(self._weight_key, (sketch, seed))
        self._step: Step | None = None
        self._shared: SharedModel

    @property
    def coordinator(self) -> Coordinator:
        """The memory of the selection: who is there, and what is known of whom."""
        return self._server.coordinator

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
        done = self._before = self.coordinator.step
        arrays = initial_arrays if self._arrays is None else self._arrays
        if done:
            log.info("fedpace: %d rounds are saved: going on with round %d", done, done + 1)
        if done >= num_rounds:
            result = Result()
            result.arrays = arrays
            return result
        self._server.courier.patience = timeout

        def evaluate(number: int, record: ArrayRecord) -> MetricRecord | None:
            found = None if evaluate_fn is None else evaluate_fn(number + done, record)
            self._server.evaluated(found or {})
            return found

        status = "interrupted"
        try:
            result = super().start(
                grid, arrays, num_rounds - done, timeout, train_config, evaluate_config, evaluate_fn and evaluate
            )
            status = "finished"
        finally:
            self._server.close(status)
        # Flower counts from 1; users count from where they began.
        for history in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
            setattr(result, history, {number + done: record for number, record in getattr(result, history).items()})
        return result

    def summary(self) -> None:
        """Log what is run."""
        log.info("\t├──> fedpace chooses nodes and weights by %s", self._scheme)
        self.inner.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Run the round; nothing is left to be sent."""
        self._step, self._arrays = None, arrays
        self._shared = self._server.share({key: array.numpy() for key, array in arrays.items()})
        if len(self.coordinator) < (k := self._scheme.fixed_k or 0):
            least = int(attribute(self.inner, "min_available_nodes", 1))
            wait_for_nodes(grid, k, least, seconds=self._nodes_seconds, scheme=self._scheme.name)
        made = self.inner.configure_train(server_round + self._before, arrays, config, grid)
        offered = {message.metadata.dst_node_id: message for message in made}
        named = {name: node for name, node in self._roster.names(offered, grid).items() if self._eligible(name)}
        self._server.presence.update({name: self._roster.notes[name] for name in named})
        here = {name: offered[node] for name, node in named.items() if name in self.coordinator.ledger}
        if not here:
            log.warning("fedpace: none of the %d nodes is eligible and said who it is: skipping a round", len(offered))
            return []
        self._step = self._server.next_step(self._messages.on(grid, here), here)
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the inner strategy aggregate the round with the cohort's weights, and save it."""
        step, self._step = self._step, None
        if step is None or self._arrays is None:
            return None, None
        arrays, metrics = self._aggregate(server_round + self._before, step)
        if arrays is not None:
            self._arrays = arrays
        own, layout = own_arrays(self.inner)
        model = {key: array.numpy() for key, array in self._arrays.items()}
        facts = {"inner": layout, "names": self._roster.bound or {}}
        self._server.stepped(step, model, moved=arrays is not None, own=own, facts=facts)
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Leave evaluation to the inner strategy."""
        return self.inner.configure_evaluate(server_round + self._before, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Let the inner strategy average what can be averaged: one reply that cannot must not stop the server."""
        usable = evaluations(replies, weight_key=self._weight_key)
        return self.inner.aggregate_evaluate(server_round + self._before, usable) if usable else None

    def close(self) -> None:
        """End the sitting where not `start` but a loop of one's own called the rounds."""
        self._server.close()

    # -- inside ----------------------------------------------------------------------------------------------

    def _aggregate(self, number: int, step: Step) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the inner strategy aggregate those that finished; who failed leaves its weight to them."""
        answers = self._server.answers(step)
        if not any(weight for weight, _, _ in answers):
            log.warning("fedpace: nobody whose update counts has answered: the shared model stays as it is")
            return None, None
        shared = self._shared
        replies, weights, models = messages(
            answers, shared.arrays, step.mode, weight_key=self._weight_key, array_key=self._array_key
        )
        arrays, metrics = self.inner.aggregate_train(number, replies)
        if arrays is None or self._server.rule == Average():
            return arrays, metrics
        averaged = {key: array.numpy() for key, array in arrays.items()}
        return _record(shared.carry_on(averaged, zip(weights, models, strict=True))), metrics


def _record(arrays: Any) -> ArrayRecord:
    return ArrayRecord({key: Array(array) for key, array in arrays.items()})
