"""`PacedServer`, an asynchronous server on Flower: nodes get tasks as they become free, and replies count at once.

It is not a Flower Strategy, because Flower's loop waits for all nodes at the end of each round. It has the same `start`
method, so an app changes by a few lines. In its records, a round is one step of the model. Schemes with rounds run here
too, with fedpace's server steps instead of an inner strategy.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedpace._base.checks import above, at_least
from fedpace._base.rng import stream
from fedpace.core.tasks import Policy, Step
from fedpace.core.types import Selector
from fedpace.flower.evaluation import NodeEvaluation
from fedpace.flower.federation import Federation
from fedpace.flower.grid import check, connected_nodes
from fedpace.flower.wire import record, unpacked
from fedpace.hosting.reply_loop import POLL_SECONDS

log = logging.getLogger("flwr")

EVALUATING_NODES = 5
"""Nodes that evaluate the model together, if the server does not evaluate it itself."""
LAST_EVALUATION_SECONDS = 60.0
"""Most seconds that the server waits at its end for nodes that evaluate the last model."""
LOG_EVERY = 2.0
"""Least real seconds between two lines of the log about steps."""
NODE_POLL_SECONDS = 3.0
"""Seconds between polls for connected nodes while waiting for a step; Flower's own grid polls as often."""
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class PacedServer(Federation):
    """A server on Flower's Grid, for asynchronous schemes and for schemes with rounds.

    Args:
        selector: a scheme: its name, a Policy or a Selector.
        settings: settings of `Federation`, and options of the scheme.
    """

    def __init__(self, selector: str | Selector[Any] | Policy[Any] = "pace-async", **settings: Any) -> None:
        super().__init__(selector, **settings)
        self._grid: Grid
        self._config = ConfigRecord()
        self._ttl: float | None = None
        self._nodes: dict[str, int] = {}
        self._looked = -math.inf
        self._evaluation: NodeEvaluation
        self._result: Result
        self._logged = (-math.inf, 0)
        """Real time and step of the last line of the log about steps."""
        self._content: RecordDict | None = None
        """What all messages with the current model hold; None until the first of them is made."""

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
        *,
        seconds: float = math.inf,
        evaluate_every: float | None = None,
        evaluate_nodes: int | None = None,
    ) -> Result:
        """Train until the model has made `num_rounds` steps in total, including steps before a restart.

        Args:
            grid: Flower's Grid.
            initial_arrays: the initial model; a restarted server uses its saved model instead.
            num_rounds: number of steps of the model.
            timeout: seconds after which a node without a reply counts as failed.
            train_config: sent with every task; the number of the current step is added as `server-round`.
            evaluate_config: sent with the model to nodes that evaluate; the number of steps is added as `server-round`.
            evaluate_fn: called with the step number and the model before the first step and after steps. Nodes keep
                training meanwhile, but their replies wait.
            seconds: stop after the first step at which this many seconds have passed, including those before a restart.
            evaluate_every: least seconds between evaluations; None = 0 for `evaluate_fn`; for nodes 5 to 60, a tenth of
                the time that has passed and ten times as long as nodes take to evaluate.
            evaluate_nodes: number of randomly drawn nodes that evaluate the model together. Each of them gets no
                training task while it evaluates: with 5 nodes once per minute, and 6 seconds per evaluation, that costs
                30 seconds of one node per minute. None = 5 without `evaluate_fn`, 0 with it. The means of their metrics
                are recorded with the next step, and are in the result's `evaluate_metrics_clientapp`. After the last
                step the server waits up to a minute for them to evaluate the last model.
        """
        check(grid)
        above(seconds, 0, "seconds")
        if evaluate_nodes is None:
            evaluate_nodes = 0 if evaluate_fn else EVALUATING_NODES
        at_least(evaluate_nodes, 0, "evaluate_nodes")
        pause = evaluate_every or 0.0
        at_least(pause, 0, "evaluate_every")
        self._evaluation = NodeEvaluation(
            evaluate_nodes,
            evaluate_every,
            timeout,
            ConfigRecord() if evaluate_config is None else evaluate_config,
            weight_key=self._weight_key,
            array_key=self._array_key,
            config_key=self._config_key,
        )
        self._grid, self._config = grid, ConfigRecord() if train_config is None else train_config
        self._server.loop.reply_timeout, self._ttl = timeout, timeout if math.isfinite(timeout) else None
        result = self._result = Result()
        result.arrays = self._arrays = initial_arrays if self._arrays is None else self._arrays
        self._server.share(unpacked(self._arrays))
        self._content = None
        if done := self.coordinator.step:
            log.info("fedpace: %d steps are saved: continuing with step %d", done, done + 1)
        with self._server.run_context():
            if not done or self._server.files.unwritten:  # or the server was killed before it evaluated the last step
                self._evaluate(evaluate_fn, result)
            evaluated = self._server.loop.now
            while self.coordinator.step < num_rounds and self.coordinator.now < seconds:
                if (step := self._next_step()) is None:
                    log.info(
                        "fedpace: the privacy budgets are spent: training ends after step %d", self.coordinator.step
                    )
                    break
                self._step(step)
                result.arrays = self._arrays
                last = self.coordinator.step == num_rounds or self.coordinator.now >= seconds
                if last or self._server.loop.now >= evaluated + pause:
                    self._evaluate(evaluate_fn, result)
                    evaluated = self._server.loop.now
            self._evaluate_the_last_model()
        return result

    def _next_step(self) -> Step | None:
        """Return the next step; if no node is available, wait for one. None = the privacy budgets are spent."""
        said = False
        while not self._server.exhausted:
            if not self._nodes:
                self._wait_for_nodes(self._grid)
            self._looked = -math.inf
            step = self._server.next_step(self._transport.on(self._grid, self._offer), self._available)
            if step is not None:
                return step
            if not said:
                known, online = len(self._nodes), len(connected_nodes(self._grid))
                log.warning("fedpace: waiting: of %d nodes, %d are eligible and have a name", online, known)
                said = True
            time.sleep(POLL_SECONDS)
        return None

    def _step(self, step: Step) -> None:
        """Apply a step; free clients get new tasks before the step is saved."""
        moved = self._server.apply(step)
        shared = self._server.shared
        self._arrays, self._content = record(shared.arrays), None
        extra = {"names": self._node_names.bound or {}}
        entry = self._server.stepped(step, shared.arrays, moved=moved, extra=extra, transport=self._transport)
        if time.monotonic() >= self._logged[0] + LOG_EVERY:
            made = entry.number - self._logged[1]
            loss = "unknown" if entry.train_loss is None else f"{entry.train_loss:.4g}"
            log.info(
                "fedpace: %s, step %d at %.1f s: %d clients, training loss %s%s",
                self._scheme.name,
                entry.number,
                entry.clock,
                len(entry.clients),
                loss,
                f" ({made} steps since the last line)" if made > 1 and self._logged[1] else "",
            )
            self._logged = (time.monotonic(), entry.number)

    def _available(self) -> Iterable[str]:
        """Return the names of available clients; poll again after NODE_POLL_SECONDS or a failed task."""
        if self._transport.failed or time.monotonic() >= self._looked + NODE_POLL_SECONDS:
            self._transport.failed = False
            self._nodes = self._present(self._grid)
            self._looked = time.monotonic()
        self._evaluate_on_nodes()
        return self._nodes.keys() - self._evaluation.busy

    def _evaluate_the_last_model(self) -> None:
        """Wait until nodes have evaluated the model of the last step, so that the record ends with its metrics."""
        step = self.coordinator.step
        if not step or self._arrays is None or not self._evaluation.size:
            return
        until = time.monotonic() + LAST_EVALUATION_SECONDS
        self._evaluation.drop()
        self._evaluate_on_nodes(working=set())
        while self._evaluation.pending:
            if time.monotonic() >= until:
                log.info("fedpace: the last model has no evaluation: nodes did not answer within a minute")
                return
            time.sleep(POLL_SECONDS)
            self._evaluate_on_nodes(working=set())

    def _evaluate_on_nodes(self, working: set[str] | None = None) -> None:
        """Let free nodes of the sample evaluate the model, and record the means when all have answered."""
        if self._arrays is None or not self._evaluation.size:
            return
        if working is None:
            working = {str(task.client) for task in self.coordinator.tasks}
        step, now = self.coordinator.step, self._server.loop.now
        rng = stream(self.coordinator.settings.seed, "evaluating nodes", step)
        found = self._evaluation.update(
            self._grid, self._nodes, lambda name: name not in working, self._arrays, step, now, rng
        )
        if found:
            self._server.files.evaluated(found)
            self._result.evaluate_metrics_clientapp[step] = MetricRecord({**found})
            means = ", ".join(f"{name} {value:.4g}" for name, value in found.items())
            log.info("fedpace: nodes evaluated the model of step %d: %s", self._evaluation.step, means)

    def _offer(self, client: str) -> Message | None:
        """Return a message with the current model for a client; None if its node has disconnected."""
        node = self._nodes.get(client)
        if node is None or self._arrays is None:
            return None
        if self._content is None:
            config = ConfigRecord({**self._config, "server-round": self.coordinator.step + 1})
            self._content = RecordDict({self._array_key: self._arrays, self._config_key: config})
        return Message(self._content, dst_node_id=node, message_type=MessageType.TRAIN, ttl=self._ttl)

    def _evaluate(self, evaluate_fn: Evaluate | None, result: Result) -> None:
        if evaluate_fn is None or self._arrays is None:
            return
        with self._server.watch("evaluating"):
            found = evaluate_fn(self.coordinator.step, self._arrays)
        self._server.files.evaluated(found or {})
        if found is not None:
            result.evaluate_metrics_serverapp[self.coordinator.step] = found
