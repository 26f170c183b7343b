"""`Federation`, the base class of `PacedStrategy` and `PacedServer`: their settings, coordinator, nodes and node names.

Node ids are random and change in every simulation and with every restart of a SuperNode, but fedpace's knowledge of a
client must survive a restart (`NodeNames`). A node that was registered at the SuperLink with a name keeps that name.
The server asks each other new node for its name once, with a train message without a model. `report_mod` answers with
the name from the node's config, and with other facts that are needed before training. A client without the mod raises
an error, and its node id is its name until it disconnects. The server waits for names only while no node has one.

A node can claim any name. So a name has one holder at a time: a second node with the same name is called by its node id
until the first has gone. With `bound`, a name belongs for good to the node id that first used it. If the SuperLink
authenticates SuperNodes, a node id is tied to the node's key, so no other node can have it.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedpace._base.checks import at_least, printable, whole
from fedpace._base.errors import InputError
from fedpace.core.coordinator import Coordinator
from fedpace.core.server_rule import ServerRule
from fedpace.core.settings import Settings
from fedpace.core.tasks import Policy
from fedpace.core.types import Need, Selector
from fedpace.flower.grid import GridTransport, connected_nodes, pull, push, registered_nodes
from fedpace.flower.wire import ASK_LABELS, ASK_NAME, ASK_SAMPLES, note_of, record
from fedpace.hosting.aggregator import TrustedAggregator
from fedpace.hosting.live_server import Clock, Host, Server, live_settings, make_selector, make_server
from fedpace.hosting.replies import Note
from fedpace.hosting.reply_loop import FORGET_SECONDS
from fedpace.hosting.shared_model import ArraysValidation
from fedpace.trust.robust import RobustRule

log = logging.getLogger("flwr")

POLL_SECONDS = 0.5
"""Seconds between polls for nodes and their names at the start."""
GRACE_SECONDS = 10.0
"""Seconds that the other nodes have to send their names after half of the nodes have sent theirs."""
LATE_NAME_FACTOR = 10
"""Late names are accepted up to this many times the allowed seconds after the deadline."""
Eligible = Collection[str] | Callable[[str], bool] | None


class NodeNames:
    """Node ids and the stable names behind them.

    Args:
        seconds: how long a node may take to send its name; 0 = do not ask, use node ids as names.
        config_key: key of the ConfigRecord in the strategy's messages.
        questions: other questions for a new node.
        bound: name -> node id that owns it for good; None = names are not bound.
    """

    def __init__(
        self, seconds: float, config_key: str, questions: Mapping[str, bool], bound: dict[str, int] | None = None
    ) -> None:
        self._seconds = seconds
        self._config_key = config_key
        self._questions = dict(questions)
        self.bound = bound
        self._registered: dict[int, tuple[str, str]] = {}
        """Node id -> name and location with which the node was registered at the SuperLink."""
        self._names: dict[int, str] = {}
        self._asked: dict[str, tuple[int, float]] = {}
        """Message id -> the new node that was asked, and its deadline."""
        self.notes: dict[str, Note] = {}
        """Name -> the node's answer. A node that asked for a taken name gets it when the name becomes free."""

    def names(self, nodes: Iterable[int], grid: Grid) -> dict[str, int]:
        """Return name -> node id of the `nodes` that have a name now; ask new nodes for their names."""
        online = list(nodes)
        # Forget nodes that disconnected: their names may come back with other ids.
        self._names = {node: name for node, name in self._names.items() if node in set(online)}
        self._asked = {identifier: asked for identifier, asked in self._asked.items() if asked[0] in set(online)}
        self.notes = {name: self.notes[name] for name in self._names.values()}
        for node, name in list(self._names.items()):
            wish = self.notes[name].name
            if wish not in ("", name) and self._free(wish, node):
                self._enter(node, wish, self.notes.pop(name))
        self._collect(grid)
        first = not self._names
        waiting = {node for node, until in self._asked.values() if time.monotonic() < until}
        if new := [node for node in online if node not in self._names and node not in waiting]:
            self._ask(new, grid)
        if first:
            self._wait(grid)
        return {self._names[node]: node for node in online if node in self._names}

    def _ask(self, nodes: list[int], grid: Grid) -> None:
        if self._seconds <= 0:
            for node in nodes:
                self._enter(node, f"node-{node}", Note())
            return
        self._registered = registered_nodes(grid)
        for node in [node for node in nodes if node in self._registered]:
            name, location = self._registered[node]
            log.info("fedpace: node %d is registered as %r%s", node, name, f" at {location!r}" if location else "")
            if not any(self._questions.values()) and self._free(name, node):
                self._enter(node, name, Note(name=name))
                nodes = [other for other in nodes if other != node]
        content = RecordDict({self._config_key: ConfigRecord({ASK_NAME: True, **self._questions})})
        made = [Message(content, dst_node_id=node, message_type=MessageType.TRAIN) for node in nodes]
        until = time.monotonic() + self._seconds
        for node, identifier in zip(nodes, push(grid, made), strict=True):
            if identifier:
                self._asked[identifier] = (node, until)
        self._collect(grid)

    def _wait(self, grid: Grid) -> None:
        """Wait for the names of the first nodes, because training cannot start without any."""
        asked, until = len({node for node, _ in self._asked.values()}), time.monotonic() + self._seconds
        if asked:
            log.info("fedpace: waiting for the names of %d nodes", asked)
        while self._asked and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
            self._collect(grid)
            if 2 * len({node for node, _ in self._asked.values()}) <= asked:
                until, asked = min(until, time.monotonic() + GRACE_SECONDS), 0

    def _collect(self, grid: Grid) -> None:
        """Process the names that have arrived."""
        nameless = came = 0
        for reply in pull(grid, self._asked) if self._asked else ():
            node, _ = self._asked.pop(reply.metadata.reply_to_message_id, (0, 0.0))
            if node != reply.metadata.src_node_id or node in self._names:
                continue  # the SuperLink answers for a node that died; the node is asked again if it reconnects
            note = _note(reply)
            if node in self._registered:
                note = replace(note, name=self._registered[node][0])
            free = bool(note.name) and self._free(note.name, node)
            if note.name and not free:
                log.warning(
                    "fedpace: node %d calls itself %r, but another node has this name: it is called node-%d instead. "
                    "Give each node its own name",
                    node,
                    note.name,
                    node,
                )
            came, nameless = came + 1, nameless + (not free)
            self._enter(node, note.name if free else f"node-{node}", note)
        # A node that is asked again may still answer the first question: on busy machines that takes minutes.
        oldest = time.monotonic() - LATE_NAME_FACTOR * self._seconds
        asked = self._asked.items()
        self._asked = {i: (node, until) for i, (node, until) in asked if node not in self._names and until > oldest}
        if nameless:
            log.warning(
                "fedpace: %d of %d new nodes have no name of their own: what fedpace learns about them is lost when "
                "they reconnect. Add report_mod to the client, and name or partition-id to --node-config",
                nameless,
                came,
            )

    def _free(self, name: str, node: int) -> bool:
        """Return whether the node may use the name."""
        owner = node if self.bound is None else self.bound.get(name, node)
        return owner == node and name not in self._names.values()

    def _enter(self, node: int, name: str, note: Note) -> None:
        if self.bound is not None and note.name == name:
            self.bound[name] = node
        self._names[node] = name
        self.notes[name] = note


def _note(reply: Message) -> Note:
    note = Note() if reply.has_error() else note_of(reply)
    if isinstance(note, str):
        log.warning(
            "fedpace: the answer of node %d about itself is invalid: %s", reply.metadata.src_node_id, printable(note)
        )
        return Note()
    return note


def eligibility(eligible: Eligible) -> Callable[[str], bool]:
    """Return a function from a client's name to whether the client may be selected."""
    if eligible is None:
        return lambda name: True
    if isinstance(eligible, str):
        raise InputError(f"eligible takes a list of names or a function, but {eligible!r} came: put it into a list")
    return eligible if callable(eligible) else frozenset(eligible).__contains__


def wait_for_nodes(grid: Grid, k: int, least: int, *, seconds: float, scheme: str) -> None:
    """Wait until max(k, least) nodes are connected, at most `seconds`; then raise if there are fewer than `least`."""
    end, said = time.monotonic() + seconds, False
    while (online := len(connected_nodes(grid))) < max(k, least):
        if not said:
            log.info("fedpace: waiting for nodes: %s selects %d, and %d are connected", scheme, k, online)
            said = True
        if time.monotonic() < end:
            time.sleep(POLL_SECONDS)
            continue
        after = f"{online} nodes are connected after {seconds:g} s"
        if online < max(1, least):
            wanted = f"the inner strategy wants at least {least}: lower its min_available_nodes, "
            wanted = wanted if least > 1 else "training needs at least one: "
            raise InputError(f"{after}, but {wanted}start more SuperNodes, or raise nodes_seconds")
        log.warning("fedpace: %s, but %s selects %d: continuing with the connected nodes", after, scheme, k)
        return


WAITING = "waiting for nodes and names"
"""Label of the first seconds in the log of where the server's time goes."""
REMEDIES = {
    Need.MOMENT: "add report_mod(module=...) to the mods of its ClientApp",
    Need.LOSS: "put train_loss into the metrics of its reply",
    Need.LABELS: "give report_mod labels=",
}


class Federation:
    """The settings of `PacedStrategy` and `PacedServer`.

    Args:
        selector: a scheme's name, a Selector, or a Policy. Clients that do not report what the scheme needs are still
            asked, a quota per round as in a lazy warm-up, and a warning names each of them.
        state: folder in which every round is saved and recorded (`fedpace report` and `fedpace watch` read it), and
            from which a restarted server continues; None = save nothing.
        settings: a `fedpace.Settings`; None = its fields as keyword arguments, such as `seed=1` or `deadline=60`. By
            default all nodes train in the first round, which ends when half of them have answered
            (`warmup="full"`, `warmup_wait=0.5`, `warmup_trains=True`). With `shares="samples"`, the numbers of samples
            come from `report_mod(samples=...)` or `labels=`, before a node first trains.
        clock: `server`: seconds are measured by the server, from sending a message to receiving its reply. `reported`:
            seconds are those that clients report, for example from delay models, and the server does not really wait.
        loss_key: metric with the client's training loss; empty = train_loss, train-loss or loss.
        sketch: entries of an update's sketch, for schemes that compare updates.
        robust: a Byzantine-robust rule in place of the weighted mean, or its name; see docs/trust.md.
        validation: a function that trains a model on the server's own data; it takes and returns named arrays. For the
            robust rules `fltrust` and `zeno`.
        forget_seconds: forget clients that were not connected for this long; clients without a name after 600 s.
        eligible: names of the clients that may be selected, or a function from a name to whether it may be selected,
            called in every round; None = all.
        bind_names: whether a name belongs for good to the first node id that used it. Turn it on if the SuperLink
            authenticates SuperNodes, because their ids then stay the same. Otherwise a node that reconnects has a new
            id.
        name_seconds: how long a new node may take to send its name; 0 = use node ids as names.
        nodes_seconds: how long to wait at the start for as many nodes as the scheme selects. After that the server
            starts with the connected nodes, or raises an error if there are too few.
        server: the server step, or its name; None = the one that the scheme asks for.
        accepts_work: whether the clients train as much as the `work` in a task's config says, with
            `fedpace.flower.local_steps`. Schemes that set work need it, and are refused otherwise.
        local_steps: usual number of local steps, if it is the same for all clients; tasks then also have the number of
            `local-steps` to make. 0 = each client knows its own.
        secure: a `fedpace.TrustedAggregator`, for which the clients seal their updates (`sealed_mod`): the server sees
            sums only (docs/privacy.md). For `PacedServer`.
        track: experiment trackers that get every step while the server works: `"mlflow"`, `"wandb"`, `"tensorboard"`,
            `"otel"`, or a list; see docs/howto/track.md. A tracker that fails does not stop the server.
        weight_key, array_key, config_key: names of the number of samples, the model and the configuration in messages.
        options: fields of `fedpace.Settings`, and options of the scheme if it is given by name. If an option of the
            scheme has the name of an argument or of a setting, pass a Selector instead.
    """

    def __init__(
        self,
        selector: str | Selector[Any] | Policy[Any],
        *,
        state: str | Path | None = None,
        settings: Settings | None = None,
        clock: Clock = "server",
        loss_key: str = "",
        sketch: int = 256,
        robust: str | RobustRule | None = None,
        validation: ArraysValidation | None = None,
        forget_seconds: float = FORGET_SECONDS,
        eligible: Eligible = None,
        bind_names: bool = False,
        name_seconds: float = 120.0,
        nodes_seconds: float = 600.0,
        server: str | ServerRule[Any] | None = None,
        accepts_work: bool = False,
        local_steps: int = 0,
        secure: TrustedAggregator | None = None,
        track: Any = None,
        weight_key: str = "num-examples",
        array_key: str = "arrays",
        config_key: str = "config",
        **options: Any,
    ) -> None:
        at_least(nodes_seconds, 0, "nodes_seconds")
        whole(local_steps, 0, "local_steps")
        settings = live_settings(settings, options)
        self._scheme: Any = make_selector(selector, options, inspect.signature(Federation).parameters)
        self._nodes_seconds = nodes_seconds
        self._eligible = eligibility(eligible)
        self._weight_key, self._array_key, self._config_key = weight_key, array_key, config_key
        self._server = Server(
            self._scheme,
            settings,
            Host("flower", log, REMEDIES).accepting(work=accepts_work),
            clock=clock,
            folder=None if state is None else Path(state),
            rule=self._server_rule(server),
            robust=robust,
            validation=validation,
            sketch=sketch,
            loss_key=loss_key,
            forget_seconds=forget_seconds,
            track=track,
            secure=secure,
        )
        self.coordinator: Coordinator = self._server.coordinator
        """It holds the known clients and the state of the scheme."""
        saved = self._server.saved
        self._arrays = None if saved is None else record(saved.model)
        """The current version of the shared model."""
        questions = {ASK_LABELS: Need.LABELS in self.coordinator.wanted, ASK_SAMPLES: settings.shares == "samples"}
        owners = {} if saved is None else {str(name): int(node) for name, node in saved.extra.get("names", {}).items()}
        self._node_names = NodeNames(name_seconds, config_key, questions, owners if bind_names else None)
        self._transport = GridTransport(
            weight_key,
            (sketch, settings.seed),
            work=bool(self._scheme.sets_work),
            local_steps=local_steps,
            parcel=None if secure is None else secure.parcel,
        )

    def _server_rule(self, server: str | ServerRule[Any] | None) -> ServerRule[Any] | None:
        """Return the server rule; None = the one that the scheme asks for."""
        return make_server(server)

    def close(self) -> None:
        """Close the state folder; call it if your own loop calls the rounds instead of `start`."""
        self._server.files.close()

    def _wait_for_nodes(self, grid: Grid, least: int = 1) -> None:
        """Wait until as many nodes are connected as the scheme selects; after the time limit, `least` are enough."""
        scheme = self._scheme
        with self._server.watch(WAITING):
            wait_for_nodes(grid, scheme.fixed_k or 1, least, seconds=self._nodes_seconds, scheme=scheme.name)

    def _present(self, grid: Grid, nodes: Iterable[int] | None = None) -> dict[str, int]:
        """Return name -> node id of the eligible nodes among `nodes` (None = all connected); new clients join."""
        with self._server.watch("looking for nodes" if self._node_names.notes else WAITING):
            named = self._node_names.names(connected_nodes(grid) if nodes is None else nodes, grid)
        allowed = {name: node for name, node in named.items() if self._eligible(name)}
        self._server.membership.update({name: self._node_names.notes[name] for name in allowed})
        return {name: node for name, node in allowed.items() if name in self.coordinator.ledger}
