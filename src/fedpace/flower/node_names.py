"""`NodeNames` maps Flower's node ids to stable client names; `wait_for_nodes` waits for nodes at the start.

Node ids are random and change in every simulation and with every restart of a SuperNode, but fedpace's knowledge of a
client must survive a restart. A node that was registered at the SuperLink with a name keeps that name. The server asks
each other new node for its name once, with a train message without a model. `report_mod` answers with the name from the
node's config, and with other facts that are needed before training. A client without the mod raises an error, and its
node id is its name until it disconnects. The server waits for names only while no node has one.

A node can claim any name. So a name has one holder at a time: a second node with the same name is called by its node id
until the first has gone. With `bound`, a name belongs for good to the node id that first used it. If the SuperLink
authenticates SuperNodes, a node id is tied to the node's key, so no other node can have it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedpace._base.errors import InputError
from fedpace._base.names import printable
from fedpace.flower.grid import connected_nodes, pull, push, registered_nodes
from fedpace.flower.wire import ASK_NAME, note_of
from fedpace.hosting.replies import Note

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
