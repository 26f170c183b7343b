"""Rounds on Flower under SecAgg+, Flower's own secure aggregation: the server sees a weighted mean, never one model.

    app = ServerApp()

    @app.main()
    def main(grid, context):
        arrays = SecureRounds("pace").start(grid, initial_arrays, rounds=20)

    client = ClientApp(mods=[secaggplus_mod, secure_mod, report_mod(module="net.head")])   # in this order

`SecureRounds` selects nodes and weights before training, and drives the four stages of Flower's `SecAggPlusWorkflow`.
Weights are known before training, so each node scales its own masked model. `secure_mod` translates between the
protocol's messages and an ordinary `@app.train()`, and adds the squared length of the update to what is masked. Names,
seconds and, for schemes that ask for them, feature moments reach the server in the clear.

A node that fails while it trains, or later, drops out of the sum, as long as enough nodes are left to restore its mask.
If a node fails before it has sent its keys, Flower's protocol cannot go on: all nodes of the round count as failed, and
the node gets no task in the next rounds.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common import FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.typing import Code
from flwr.server.client_proxy import ClientProxy
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedpace._base import registry
from fedpace._base.checks import above, at_least
from fedpace._base.errors import InputError
from fedpace._base.files import json_bytes, npz_bytes, read_json, read_npz, write_atomically
from fedpace._base.options import AtLeast
from fedpace.core.budget import PrivacyBudget
from fedpace.core.coordinator import Coordinator
from fedpace.core.privacy import TrainingPrivacy
from fedpace.core.settings import MINIMUM, Settings
from fedpace.core.sums import SQUARE, UPDATE, Group, GroupSum, SumAggregator
from fedpace.core.tasks import Step, Task
from fedpace.core.types import Need, Outcome
from fedpace.flower.grid import check, pull, push
from fedpace.flower.mods import Handler
from fedpace.flower.wire import ASK_MOMENT, ASK_TARGETS, RECORD, note_of, unpacked
from fedpace.hosting.aggregator import secret_normal
from fedpace.hosting.replies import Arrays, flat, is_buffer
from fedpace.server import server_step
from fedpace.server._client_memory import sum_rule

log = logging.getLogger("flwr")

compat: Any = import_module("flwr.client.mod.secure_aggregation.secaggplus_mod").compat
"""Flower's conversion between messages and the records of its older API, which SecAgg+ uses."""
WEIGHT, UNIT, NAMES, CLIP = "fedpace-weight", "fedpace-unit", "fedpace-arrays", "fedpace-clip"
"""Keys in the config of a task: the node's weight, the unit of squared lengths, the names of the arrays, and the
longest update (0 = any)."""
LARGEST = 1000
"""Weight of the heaviest node in the protocol, which takes whole numbers."""
REST = 5
"""Rounds without a task for a node that was silent in a round that could not be finished."""
STATE = "secure.json"
"""File in the state folder that names the files of the last round."""
POLL = 0.05
"""Seconds between looks for replies."""


# -- on the client -------------------------------------------------------------------------------------------------


def secure_mod(message: Message, context: Context, call_next: Handler) -> Message:
    """Flower mod between `secaggplus_mod` and an ordinary client: it weights the model, so that it can be masked."""
    if not message.metadata.message_type.startswith("train"):
        return call_next(message, context)
    content = message.content
    asked = compat.recorddict_to_fitins(content, keep_input=True)
    config = dict(asked.config)
    names: list[str] = json.loads(str(config.pop(NAMES)))
    weight, unit, clip = int(config.pop(WEIGHT)), float(config.pop(UNIT)), float(config.pop(CLIP))
    received = dict(zip(names, parameters_to_ndarrays(asked.parameters), strict=True))
    arrays = ArrayRecord({name: Array(array) for name, array in received.items()})
    message.content = RecordDict({"arrays": arrays, "config": ConfigRecord(config)})
    try:
        reply = call_next(message, context)
    finally:
        message.content = content
    if reply.has_error():
        return reply
    trained = unpacked(next(iter(reply.content.array_records.values())))
    learned = [name for name in names if not is_buffer(name, received[name])]
    step = flat(trained, learned) - flat(received, learned)
    if not np.isfinite(step).all():
        raise InputError("the trained model is not finite: nothing is sent")
    square = np.array([float(step @ step) / unit], dtype=np.float32)
    if clip > 0:  # differential privacy: nothing but the clipped update leaves the node
        if len(learned) < len(names):
            raise InputError("the model has buffers, which get no noise: use a model without them, or no noise")
        square[0], scale = 0.0, min(1.0, clip / max(float(np.sqrt(step @ step)), 1e-300))
        trained = {key: received[key] + scale * (np.float64(trained[key]) - received[key]) for key in names}
    parameters = ndarrays_to_parameters([*(np.asarray(trained[name], dtype=np.float32) for name in names), square])
    made = compat.fitres_to_recorddict(FitRes(Status(Code.OK, ""), parameters, weight, {}), keep_input=False)
    if RECORD in reply.content.config_records:
        note = reply.content.config_records[RECORD]
        made[RECORD] = ConfigRecord({key: value for key, value in note.items() if key != "update"})
    return Message(made, reply_to=message)


# -- on the server -------------------------------------------------------------------------------------------------


class SecureRounds:
    """Selects nodes and trains them in rounds under SecAgg+.

    Args:
        selector: a scheme for rounds, or its name.
        minimum: fewest nodes in a sum.
        seed: of all random streams.
        server: server step, or its name; None = the scheme's, as far as sums allow (`fedpace.server._client_memory`).
        threshold: part of a round's nodes that must stay until the end; the others may drop out while they train.
        clipping_range: parameters beyond plus and minus this are clipped by Flower's protocol.
        timeout: seconds to wait for each stage of the protocol; nodes that are silent for longer have dropped out.
        state: folder in which every round is saved, and from which a restarted server continues; None = save nothing.
        privacy: differential privacy. Nodes clip their updates; the server adds noise to the sum before it steps, so
            that models are private, but not against whoever reads the server's memory. None = no noise.
    """

    def __init__(
        self,
        selector: Any,
        *,
        minimum: Annotated[int, AtLeast(1)] = MINIMUM,
        seed: int = 0,
        server: Any = None,
        threshold: float = 0.5,
        clipping_range: float = 8.0,
        timeout: float = 600.0,
        state: str | Path | None = None,
        privacy: TrainingPrivacy | None = None,
    ) -> None:
        scheme = registry.selectors[selector]() if isinstance(selector, str) else selector
        rule = registry.servers[server]() if isinstance(server, str) else server
        at_least(minimum, 2, "minimum of SecureRounds")
        above(timeout, 0, "timeout of SecureRounds")
        settings = Settings(seed, aggregation="sums", minimum=minimum, warmup_trains=True)
        offers = frozenset({Need.DELAY, Need.MOMENT, Need.TARGETS})
        self.coordinator = Coordinator(scheme, settings, offers=offers)
        if not self.coordinator.policy.rounds:
            raise InputError(
                f"{scheme.name} works without rounds, and Flower's SecAgg+ only in rounds: use pace, or fedpace's "
                "simulator"
            )
        self.budget = PrivacyBudget(privacy) if privacy is not None and privacy.epsilon else None
        """Budgets of the nodes; None = no noise."""
        self.rule = sum_rule(server_step(scheme, rule), noisy=self.budget is not None)
        self._protocol = (threshold, clipping_range, timeout)
        self._aggregator: SumAggregator | None = None
        self._rests: dict[int, int] = {}
        """Node -> the round until which it gets no task, because it stopped a round."""
        self.history: list[dict[str, Any]] = []
        """One entry per round: nodes, nodes that failed, and whether the model moved."""
        self._folder, self._unit = None if state is None else Path(state), 1.0
        self._saved: tuple[dict[str, Any], dict[str, NDArray[Any]]] | None = None
        if self._folder is not None and (self._folder / STATE).exists():
            self._load(self._folder, scheme)

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *, rounds: int) -> ArrayRecord:
        """Train until `rounds` rounds are made, those of earlier calls included, and return the shared model."""
        check(grid)
        current: dict[str, NDArray[Any]] = unpacked(initial_arrays)
        learned = [name for name, array in current.items() if not is_buffer(name, array)]
        size = flat(current, learned).size
        aggregator = self._aggregator = self._aggregator or SumAggregator(self.rule, lambda: np.zeros(size))
        if self._saved is not None:
            facts, vectors = self._saved
            aggregator.load(facts["server"], {k[7:]: v for k, v in vectors.items() if k.startswith("server:")})
            current = {name: vectors[f"model:{name}"] for name in current}
            self._saved = None
        began, unit = time.monotonic() - self.coordinator.now, self._unit
        while self.coordinator.step < rounds:
            nodes = sorted(int(node) for node in grid.get_node_ids())
            if self.budget is not None:
                nodes = [node for node in nodes if self.budget.affordable(node)]
                if self.budget.spent and len(nodes) < self.coordinator.settings.minimum:
                    log.info(
                        "fedpace: the privacy budgets are spent: training ends after round %d", self.coordinator.step
                    )
                    break
            if new := [node for node in nodes if node not in self.coordinator.ledger]:
                self.coordinator.join(new)
            nodes = [node for node in nodes if self._rests.get(node, 0) <= self.coordinator.step]
            due = self.coordinator.due(time.monotonic() - began, nodes)
            if not due.tasks:
                log.info("fedpace: %d nodes are connected; waiting for more", len(nodes))
                time.sleep(1.0)
                continue
            opened = self._train(grid, due.tasks, current, unit)
            for task in due.tasks:
                if (outcome := opened.outcomes.get(task.id)) is not None:
                    self.coordinator.receive(task.id, outcome, time.monotonic() - began)
                else:
                    self.coordinator.lost(task.id, time.monotonic() - began, why="it dropped out of secure aggregation")
            step = self.coordinator.due(time.monotonic() - began, nodes).step
            if step is None:
                continue
            current, unit, moved = self._step(aggregator, step, opened, current, learned, unit)
            turn = self.coordinator.stepped(time.monotonic() - began)
            self._unit = unit
            self.history.append({"clients": list(turn.clients), "failed": list(turn.failed), "moved": moved})
            log.info(
                "fedpace: round %d, %d nodes, %d failed", self.coordinator.step, len(turn.clients), len(turn.failed)
            )
            self._save(aggregator, current)
        return ArrayRecord({name: Array(array) for name, array in current.items()})

    def _save(self, aggregator: SumAggregator, current: Mapping[str, NDArray[Any]]) -> None:
        """Save the round: the files of the round first, and then the file that names them, in one piece."""
        if self._folder is None:
            return
        place = f"round-{self.coordinator.step}"
        self.coordinator.save(self._folder / place)
        scalars, state = aggregator.saved()
        vectors = {f"model:{name}": np.asarray(array) for name, array in current.items()}
        vectors |= {f"server:{name}": np.asarray(vector) for name, vector in state.items()}
        budget, noise = ({}, {}) if self.budget is None else self.budget.saved()
        write_atomically(self._folder / place / "arrays.npz", npz_bytes({**vectors, **noise}))
        facts = {"round": place, "unit": self._unit, "rests": list(self._rests.items()), "history": self.history}
        write_atomically(self._folder / STATE, json_bytes({**facts, "server": scalars, "budget": budget}))
        for other in self._folder.glob("round-*"):
            if other.name != place:
                shutil.rmtree(other, ignore_errors=True)

    def _load(self, folder: Path, scheme: Any) -> None:
        """Continue after the last saved round; what was under way is given up."""
        facts = read_json(folder / STATE)
        vectors = read_npz(folder / facts["round"] / "arrays.npz")
        self.coordinator = Coordinator.restore(folder / facts["round"], scheme)
        self.coordinator.abandon()
        self._unit, self.history = float(facts["unit"]), list(facts["history"])
        self._rests = {int(node): int(until) for node, until in facts["rests"]}
        if self.budget is not None and facts["budget"]:
            self.budget.load(facts["budget"], vectors)
        self._saved = facts, vectors

    def _train(self, grid: Grid, tasks: Sequence[Task], current: Arrays, unit: float) -> _Opened:
        """Let the nodes of these tasks train, and return what their masked models sum to."""
        heaviest = max(task.weight for task in tasks) or 1.0
        config: dict[int, dict[str, Any]] = {}
        for task in tasks:
            weight = round(LARGEST * task.weight / heaviest) if task.kind == "train" else 0
            config[_node(task)] = {
                WEIGHT: weight,
                UNIT: unit,
                NAMES: json.dumps(list(current)),
                CLIP: 0.0 if self.budget is None else self.budget.privacy.clip,
                ASK_MOMENT: Need.MOMENT in task.facts,
                ASK_TARGETS: Need.TARGETS in task.facts,
            }
        threshold, clipping_range, timeout = self._protocol
        listening = _Listening(grid)
        bridge = _Bridge(list(current.values()), config)
        context = LegacyContext(Context(0, 0, {}, RecordDict(), {}), strategy=bridge)
        context.state.config_records["config"] = ConfigRecord({"current_round": self.coordinator.step + 1})
        context.state.array_records["parameters"] = compat.parameters_to_arrayrecord(bridge.parameters, True)
        workflow = SecAggPlusWorkflow(
            1.0, threshold, max_weight=float(LARGEST), clipping_range=clipping_range, timeout=timeout
        )
        workflow(listening, context)  # type: ignore[arg-type]
        if bridge.mean is None:
            self._rests |= dict.fromkeys(listening.silent, self.coordinator.step + REST)
        survivors = {_node(task): task for task in tasks if _node(task) in bridge.finished}
        outcomes = {task.id: listening.outcome(node) for node, task in survivors.items()}
        weights = {task.id: float(config[_node(task)][WEIGHT]) for task in tasks}
        return _Opened(bridge.mean, outcomes, weights, self.budget)

    def _step(
        self,
        aggregator: SumAggregator,
        step: Step,
        opened: _Opened,
        current: Mapping[str, NDArray[Any]],
        learned: Sequence[str],
        unit: float,
    ) -> tuple[dict[str, NDArray[Any]], float, bool]:
        """Return the next model, the unit of squared lengths for the next round, and whether the model moved."""
        start = flat(current, learned)
        opened.prepare(current, learned, unit)
        applied = aggregator.apply(self.coordinator, step, start, opened)
        if not applied.moved or opened.mean is None:
            return dict(current), unit, False
        found = {name: np.asarray(array) for name, array in current.items()}
        means = dict(zip(current, opened.mean, strict=False))
        at = 0
        for name in learned:
            size = found[name].size
            found[name] = applied.model[at : at + size].reshape(found[name].shape).astype(found[name].dtype)
            at += size
        for name in set(found) - set(learned):
            mean = np.asarray(means[name])
            whole = not np.issubdtype(found[name].dtype, np.floating)
            found[name] = (np.rint(mean) if whole else mean).astype(found[name].dtype)
        return found, max(opened.mean_square, 1e-12), True


class _Opened:
    """The weighted mean of the models of a round; the `Opener` of `SumAggregator`.

    Args:
        mean: the mean of each array, and of the squared length of updates; None = the protocol was halted.
        outcomes: task -> report, for the nodes in the mean.
        weights: task -> its weight in the protocol.
        budget: differential privacy; None = no noise.
    """

    def __init__(
        self,
        mean: list[NDArray[Any]] | None,
        outcomes: Mapping[int, Outcome],
        weights: Mapping[int, float],
        budget: PrivacyBudget | None = None,
    ) -> None:
        self.mean, self.outcomes, self._weights, self._budget = mean, outcomes, weights, budget
        self.mean_square = 0.0
        """Weighted mean of the squared lengths of the updates."""
        self._update: NDArray[Any] = np.zeros(0)

    def prepare(self, current: Mapping[str, NDArray[Any]], learned: Sequence[str], unit: float) -> None:
        """Compute the mean update from the model that the nodes received."""
        if self.mean is not None:
            means = dict(zip(current, self.mean, strict=False))
            self._update = flat(means, learned) - flat(current, learned)
            self.mean_square = max(0.0, float(self.mean[-1][0])) * unit

    def open(self, group: Group, minimum: int) -> GroupSum | None:
        """Return the sum, if enough nodes are in it."""
        absent = frozenset(member.task for member in group.members if member.task not in self.outcomes)
        kept = [member for member in group.members if member.task not in absent and self._weights[member.task] > 0]
        if self.mean is None or len({member.client for member in kept}) < minimum:
            return None
        total = sum(member.weight for member in kept)
        if self._budget is not None:  # the protocol's weights are rounded: charge and add noise by those
            whole = sum(self._weights[member.task] for member in kept)
            told = [member._replace(weight=total * self._weights[member.task] / whole) for member in kept]
            noisy = self._budget.release(total * self._update, told, secret_normal)
            return GroupSum(len(kept), {UPDATE: noisy}, {}, absent)
        return GroupSum(len(kept), {UPDATE: total * self._update}, {SQUARE: total * self.mean_square}, absent)

    def publish(self, version: int, reference: Any) -> None:
        """Do nothing: rules for rounds have no references."""

    lost_memory = False

    def forget(self) -> None:
        """Do nothing: nodes have no memory."""


class _Node(ClientProxy):
    """A node's id, for Flower's workflow; it is never called."""

    def __init__(self, node: int) -> None:
        super().__init__(str(node))
        self.node_id = node

    def get_properties(self, *args: Any, **kwargs: Any) -> Any:
        """Not used."""
        raise NotImplementedError

    get_parameters = fit = evaluate = reconnect = get_properties


class _Bridge(FedAvg):
    """Strategy of Flower's older API that gives the workflow its nodes, and takes the mean from it."""

    def __init__(self, arrays: Sequence[NDArray[Any]], config: Mapping[int, Mapping[str, Any]]) -> None:
        super().__init__()
        # The workflow works with floats; integers, such as counters, come back rounded.
        self.parameters = ndarrays_to_parameters([np.asarray(array) for array in arrays])
        self._config = config
        self.mean: list[NDArray[Any]] | None = None
        self.finished: set[int] = set()
        """Nodes in the mean."""

    def configure_fit(
        self, server_round: int, parameters: Any, client_manager: Any
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Return the selected nodes, each with its weight."""
        return [(_Node(node), FitIns(self.parameters, dict(config))) for node, config in self._config.items()]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> tuple[None, dict[str, Any]]:
        """Take the mean, which Flower puts in the place of every node's model."""
        if results:
            self.mean = parameters_to_ndarrays(results[0][1].parameters)
            self.finished = {int(node.node_id) for node, _ in results}
        return None, {}


class _Listening:
    """A Grid that notes when each node replied, and what `report_mod` wrote into the reply."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.silent: set[int] = set()
        """Nodes that did not reply in the first stage in which some did not."""
        self._seconds: dict[int, float] = {}
        self._notes: dict[int, Any] = {}

    def send_and_receive(self, messages: Sequence[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages, and return the replies that come within `timeout` seconds."""
        began = time.monotonic()
        sent = list(messages)
        asked = {int(message.metadata.dst_node_id) for message in sent}
        open_ones = {identifier for identifier in push(self._grid, sent) if identifier}
        found: list[Message] = []
        while open_ones and (timeout is None or time.monotonic() - began < timeout):
            for reply in pull(self._grid, open_ones):
                open_ones.discard(reply.metadata.reply_to_message_id)
                found.append(reply)
                if not reply.has_error() and RECORD in reply.content.config_records:
                    node = int(reply.metadata.src_node_id)
                    self._seconds[node] = time.monotonic() - began
                    self._notes[node] = note_of(reply)
            if open_ones:
                time.sleep(POLL)
        replied = {int(reply.metadata.src_node_id) for reply in found if not reply.has_error()}
        self.silent = self.silent or asked - replied  # later, others fail because of these
        return found

    def outcome(self, node: int) -> Outcome:
        """Return the report of a node that trained."""
        note, measured = self._notes.get(node), self._seconds.get(node, math.nan)
        if note is None or isinstance(note, str):
            return Outcome(node, seconds=measured, measured=measured)
        seconds = note.seconds if math.isfinite(note.seconds) else measured
        return Outcome(node, seconds=seconds, samples=note.samples, moment=note.moment, measured=measured)


def _node(task: Task) -> int:
    node: int = task.client  # type: ignore[assignment]
    return node
