"""`PacedStrategy` wraps a Flower strategy: fedpace selects and weights the nodes, the inner strategy does the rest.

A Flower round is one step of the coordinator. `configure_train` lets the inner strategy create its messages for all
nodes, sends the messages of the selected nodes, and returns when the round has ended, so nothing is left for Flower to
send. `aggregate_train` overwrites the weight key (`num-examples`) of the replies with the cohort's weights, and the
inner strategy aggregates. The simulator uses the same coordinator, so the same reports lead to the same cohorts.

After a restart, `start` continues at the next round, while Flower's own loop always begins at round 1.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedpace._base.errors import InputError
from fedpace.core.providers import selector_class
from fedpace.core.tasks import Step
from fedpace.core.types import Selector
from fedpace.flower import versions
from fedpace.flower.averaging import evaluations, messages
from fedpace.flower.federation import Federation
from fedpace.flower.inner import attribute, check_inner, has_momentum, own_arrays, put_back
from fedpace.flower.wire import record, unpacked
from fedpace.server.average import Average

log = logging.getLogger("flwr")


class PacedStrategy(Federation, Strategy):
    """A Flower strategy (Message API) with fedpace's selection and weights. It must be the outermost wrapper.

    Args:
        inner: the strategy to wrap; leave its `fraction_train` at 1.
        selector: a scheme with rounds: its name, or a Selector. For asynchronous schemes use `PacedServer`.
        settings: settings of `Federation`, and options of the scheme. `server` is the server step, applied to the inner
            strategy's average. None = the one that the scheme asks for, or none if the inner strategy is a server
            optimiser itself. At the start, `min_available_nodes` of the inner strategy are enough.
    """

    def __init__(self, inner: Strategy, selector: str | Selector[Any] = "pace", **settings: Any) -> None:
        check_inner(inner)
        scheme: Any = selector_class(selector) if isinstance(selector, str) else selector
        if not getattr(scheme, "rounds", True):
            raise InputError(
                f"{scheme.name} works without rounds, which a strategy of Flower's cannot aggregate: use "
                "fedpace.flower.PacedServer, whose server steps are fedpace's own"
            )
        if settings.get("server") is None and has_momentum(inner):
            settings["server"] = Average()  # the inner strategy already has momentum: a second one would overshoot
        self.inner = inner
        super().__init__(
            selector,
            weight_key=str(attribute(inner, "weighted_by_key", "num-examples")),
            array_key=str(attribute(inner, "arrayrecord_key", "arrays")),
            config_key=str(attribute(inner, "configrecord_key", "config")),
            **settings,
        )
        if (saved := self._server.saved) is not None:
            with self._server.files.letting_go():
                put_back(inner, saved.facts.get("inner", []), saved.own)
        self._before = self.coordinator.step
        """Rounds completed before this server started."""
        self._step: Step | None = None

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
        """Run until `num_rounds` rounds are completed in total, including rounds before a restart."""
        versions.check(grid)
        done = self._before = self.coordinator.step
        arrays = initial_arrays if self._arrays is None else self._arrays
        if done:
            log.info("fedpace: %d rounds are saved: going on with round %d", done, done + 1)
        self._server.courier.patience = timeout

        def evaluate(number: int, current: ArrayRecord) -> MetricRecord | None:
            found = None if evaluate_fn is None else evaluate_fn(number + done, current)
            self._server.files.evaluated(found or {})
            return found

        if done >= num_rounds:
            if self._server.files.unwritten:  # the server was killed between saving the last round and recording it
                evaluate(0, arrays)
            self._server.files.close("finished")
            result = Result()
            result.arrays = arrays
            return result
        with self._server.sitting():
            result = super().start(
                grid, arrays, num_rounds - done, timeout, train_config, evaluate_config, evaluate_fn and evaluate
            )
        # Flower counts rounds from 1 after a restart; the result counts from the first start.
        for history in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
            setattr(result, history, {number + done: found for number, found in getattr(result, history).items()})
        return result

    def summary(self) -> None:
        """Log the scheme and the inner strategy's summary."""
        log.info("\t├──> fedpace chooses nodes and weights by %s", self._scheme)
        self.inner.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Run the whole round; return no messages, because all have been sent."""
        self._step, self._arrays = None, arrays
        self._server.share(unpacked(arrays))
        if len(self.coordinator) < (self._scheme.fixed_k or 0):
            self._wait_for_nodes(grid, int(attribute(self.inner, "min_available_nodes", 1)))
        made = self.inner.configure_train(server_round + self._before, arrays, config, grid)
        offered = {message.metadata.dst_node_id: message for message in made}
        present = self._present(grid, offered)
        if not present:
            log.warning("fedpace: none of the %d nodes is eligible and said who it is: skipping a round", len(offered))
            return []
        mine = {name: offered[node] for name, node in present.items()}
        self._step = self._server.next_step(self._messages.on(grid, mine.get), mine)
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the inner strategy aggregate the round with the cohort's weights, and save it."""
        step, self._step = self._step, None
        if step is None or self._arrays is None:
            return None, None
        with self._server.watch("stepping"):
            arrays, metrics = self._aggregate(server_round + self._before, step)
        if arrays is not None:
            self._arrays = arrays
        own, layout = own_arrays(self.inner)
        facts = {"inner": layout, "names": self._roster.bound or {}}
        self._server.stepped(step, unpacked(self._arrays), moved=arrays is not None, own=own, facts=facts)
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Leave evaluation to the inner strategy."""
        return self.inner.configure_evaluate(server_round + self._before, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Let the inner strategy average the usable replies: one bad reply must not stop the server."""
        usable = evaluations(replies, weight_key=self._weight_key)
        return self.inner.aggregate_evaluate(server_round + self._before, usable) if usable else None

    # -- inside ----------------------------------------------------------------------------------------------

    def _aggregate(self, number: int, step: Step) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the inner strategy aggregate the answers, after the bounds on clients' influence."""
        step, answers = self._server.bounded(step)
        if not any(weight for weight, _, _ in answers):
            log.warning("fedpace: nobody whose update counts has answered: the shared model stays as it is")
            return None, None
        shared = self._server.shared
        replies, weights, models = messages(
            answers, shared.arrays, step.mode, weight_key=self._weight_key, array_key=self._array_key
        )
        arrays, metrics = self.inner.aggregate_train(number, replies)
        if arrays is None or self._server.rule == Average():
            return arrays, metrics
        return record(shared.carry_on(unpacked(arrays), zip(weights, models, strict=True))), metrics
