"""Flower's own Grid surface in one process: real ClientApps behind it, no network and no Ray."""

from __future__ import annotations

import itertools

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

import fedpace


class LocalGrid(Grid):
    """Node id -> (ClientApp, Context). What a client raises becomes an error reply, as in Flower."""

    def __init__(self):
        self.nodes = {}
        self.sent = []
        self.dead = set()
        self._ids = itertools.count(1)
        self._replies = {}

    def add(self, node, app, **node_config):
        self.nodes[node] = (app, Context(1, node, node_config, RecordDict(), {}))

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        identifiers = []
        for message in messages:
            node = message.metadata.dst_node_id
            identifier = f"message-{next(self._ids)}"
            message.metadata.__dict__["_message_id"] = identifier
            message.metadata.__dict__["_src_node_id"] = 1
            identifiers.append(identifier)
            self.sent.append(message)
            if node in self.dead:
                # A SuperNode that died: after a while the SuperLink answers in its own name.
                message.metadata.__dict__["_dst_node_id"] = 1
                self._replies[identifier] = Message(Error(code=5, reason="node unavailable"), reply_to=message)
                continue
            app, context = self.nodes[node]
            try:
                self._replies[identifier] = app(message, context)
            except Exception as problem:
                self._replies[identifier] = Message(Error(code=0, reason=repr(problem)), reply_to=message)
        return identifiers

    def pull_messages(self, message_ids):
        return [self._replies.pop(identifier) for identifier in list(message_ids) if identifier in self._replies]

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(messages))

    def trained(self):
        """Nodes that were sent a model to train, in order."""
        training = [m for m in self.sent if m.metadata.message_type == "train" and "arrays" in m.content]
        return [message.metadata.dst_node_id for message in training]


def arrays(*values):
    return ArrayRecord({f"w{i}": Array(np.asarray(value, dtype=np.float32)) for i, value in enumerate(values)})


def client_app(mods=(), *, target=1.0, examples=10, loss=0.5, fail=None):
    """A client whose training moves every array to its own target."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message, context):
        record = message.content["arrays"]
        if fail is not None:
            fail(message, context)
        start = {key: array.numpy() for key, array in record.items()}
        moved = {k: Array(np.asarray(x + np.float32(0.3) * (np.float32(target) - x))) for k, x in start.items()}
        metrics = {"num-examples": examples, "train_loss": loss(message) if callable(loss) else loss}
        return Message(RecordDict({"arrays": ArrayRecord(moved), "metrics": MetricRecord(metrics)}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        metrics = {"num-examples": examples, "eval_loss": loss(message) if callable(loss) else loss}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


class Tools:
    grid = LocalGrid
    app = staticmethod(client_app)
    arrays = staticmethod(arrays)
    config = ConfigRecord

    @staticmethod
    def rounds(strategy, grid, record, count, first=1):
        """Train as Flower's loop does, and return the shared model."""
        for number in range(first, first + count):
            messages = strategy.configure_train(number, record, ConfigRecord(), grid)
            result, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))
            record = record if result is None else result
        if hasattr(strategy, "close"):
            strategy.close()
        return record

    @staticmethod
    def rows(number, samples=12, width=4):
        """Features of client `number`, exact in single precision, as they travel."""
        rng = fedpace.stream(0, "flower features", number)
        return rng.normal(size=(samples, width)).astype(np.float32).astype(np.float64)
