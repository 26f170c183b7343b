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
from fedpace.core.tasks import Policy, Step
from fedpace.core.types import Selector
from fedpace.flower import versions
from fedpace.flower.federation import Federation
from fedpace.flower.wire import record, unpacked
from fedpace.hosting.courier import POLL

log = logging.getLogger("flwr")

LOOK = 3.0
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
        self._content = (-1, RecordDict())
        """Version of the model in the current message content, and that content."""

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
        evaluate_every: float = 0.0,
    ) -> Result:
        """Train until the model has made `num_rounds` steps in total, including steps before a restart.

        Args:
            grid: Flower's Grid.
            initial_arrays: the initial model; a restarted server uses its saved model instead.
            num_rounds: number of steps of the model.
            timeout: seconds after which a node without a reply counts as failed.
            train_config: sent with every task; the number of the current step is added as `server-round`.
            evaluate_config: not used, because nodes would have to wait for one another; a warning says so.
            evaluate_fn: called with the step number and the model before the first step and after steps. Nodes keep
                training meanwhile, but their replies wait.
            seconds: stop after the first step at which this many seconds have passed, including those before a restart.
            evaluate_every: least seconds between evaluations.
        """
        versions.check(grid)
        above(seconds, 0, "seconds")
        at_least(evaluate_every, 0, "evaluate_every")
        if evaluate_config is not None:
            log.warning("fedpace: evaluate_config is not used: without rounds nodes evaluate nothing, evaluate_fn does")
        self._grid, self._config = grid, ConfigRecord() if train_config is None else train_config
        self._server.courier.patience, self._ttl = timeout, timeout if math.isfinite(timeout) else None
        result = Result()
        result.arrays = self._arrays = initial_arrays if self._arrays is None else self._arrays
        self._server.share(unpacked(self._arrays))
        if done := self.coordinator.step:
            log.info("fedpace: %d steps are saved: going on with step %d", done, done + 1)
        with self._server.sitting():
            if not done or self._server.files.unwritten:  # or the server was killed before it evaluated the last step
                self._evaluate(evaluate_fn, result)
            evaluated = self._server.courier.now
            while self.coordinator.step < num_rounds and self.coordinator.now < seconds:
                self._step(self._next_step())
                result.arrays = self._arrays
                last = self.coordinator.step == num_rounds or self.coordinator.now >= seconds
                if last or self._server.courier.now >= evaluated + evaluate_every:
                    self._evaluate(evaluate_fn, result)
                    evaluated = self._server.courier.now
        return result

    def _next_step(self) -> Step:
        """Return the next step; if no node is available, wait for one."""
        said = False
        while True:
            if not self._nodes:
                self._wait_for_nodes(self._grid)
            self._looked = -math.inf
            step = self._server.next_step(self._messages.on(self._grid, self._offer), self._available)
            if step is not None:
                return step
            if not said:
                known, online = len(self._nodes), len(versions.nodes(self._grid))
                log.warning("fedpace: waiting: of %d nodes, %d are eligible and said who they are", online, known)
                said = True
            time.sleep(POLL)

    def _step(self, step: Step) -> None:
        """Apply a step; free clients get new tasks before the step is saved."""
        moved = self._server.take(step)
        shared = self._server.shared
        self._arrays = record(shared.arrays)
        facts = {"names": self._roster.bound or {}}
        self._server.stepped(step, shared.arrays, moved=moved, facts=facts, transport=self._messages)

    def _available(self) -> Iterable[str]:
        """Return the names of available clients; poll again after `LOOK` seconds, or after a failed task."""
        if self._messages.failed or time.monotonic() >= self._looked + LOOK:
            self._messages.failed = False
            self._nodes = self._present(self._grid)
            self._looked = time.monotonic()
        return self._nodes

    def _offer(self, client: str) -> Message | None:
        """Return a message with the current model for a client; None if its node has disconnected."""
        node = self._nodes.get(client)
        if node is None or self._arrays is None:
            return None
        if self._content[0] != self.coordinator.step:
            config = ConfigRecord({**self._config, "server-round": self.coordinator.step + 1})
            content = RecordDict({self._array_key: self._arrays, self._config_key: config})
            self._content = (self.coordinator.step, content)
        return Message(self._content[1], dst_node_id=node, message_type=MessageType.TRAIN, ttl=self._ttl)

    def _evaluate(self, evaluate_fn: Evaluate | None, result: Result) -> None:
        if evaluate_fn is None or self._arrays is None:
            return
        with self._server.watch("evaluating"):
            found = evaluate_fn(self.coordinator.step, self._arrays)
        self._server.files.evaluated(found or {})
        if found is not None:
            result.evaluate_metrics_serverapp[self.coordinator.step] = found
