"""Flower without rounds, with updates that only a trusted aggregator can open."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

import socket
import threading
from types import SimpleNamespace

from flwr.app import RecordDict
from flwr.serverapp.strategy import FedAvg

from fedpace import AggregatorProcess, TrainingPrivacy, TrustedAggregator
from fedpace._base.errors import InputError
from fedpace.flower import PacedServer, PacedStrategy, report_mod, sealed_mod

NODES = 10


@pytest.fixture
def aggregator(tmp_path):
    """Return a function that starts an aggregator, and returns the server's connection to it."""
    over, threads = threading.Event(), []

    def start(minimum=4, **privacy):
        one = AggregatorProcess(tmp_path / "keys", minimum, TrainingPrivacy("sums", minimum=minimum, **privacy))
        listener = socket.create_server(("127.0.0.1", 0))
        thread = threading.Thread(target=lambda: one.serve(listener, until=over.is_set))
        thread.start()
        threads.append((thread, listener))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        return TrustedAggregator(address, tmp_path / "keys" / "server.json", patience=5)

    yield start
    over.set()
    for thread, listener in threads:
        thread.join()
        listener.close()


def federation(flower, keys, received, fail=None):
    grid = flower.grid()
    for node in range(NODES):
        delay = 1.0 + 0.7 * (node % 4)
        mods = [report_mod(delay=lambda m, c, s, delay=delay: delay), sealed_mod(keys / "client.json")]
        app = flower.app(mods, target=float(node), fail=fail if node == 3 else None)
        grid.add(100 + node, app, **{"partition-id": node})
    pull = grid.pull_messages

    def watched(message_ids):
        found = list(pull(message_ids))
        received.extend(found)
        return found

    grid.pull_messages = watched
    return grid


@pytest.mark.parametrize("scheme", ["pace-async", "fedbuff"])
def test_the_server_gets_no_model(flower, aggregator, tmp_path, scheme):
    received = []
    options = {"buffer": 6} if scheme == "fedbuff" else {}
    server = PacedServer(scheme, secure=aggregator(), clock="reported", state=tmp_path / "state", **options)
    grid = federation(flower, tmp_path / "keys", received)
    found = server.start(grid, flower.arrays([0.0, 0.0]), 15, evaluate_nodes=0)
    assert np.allclose(found.arrays["w0"].numpy(), 4.5, atol=1.0)
    assert len(received) > 40
    assert not any(reply.content.array_records or reply.content.metric_records for reply in received)
    assert server.coordinator.step == 15
    # A restarted server goes on, and the clients' memory is still of use.
    again = PacedServer(scheme, secure=aggregator(), clock="reported", state=tmp_path / "state", **options)
    found = again.start(
        federation(flower, tmp_path / "keys", received), flower.arrays([0.0, 0.0]), 25, evaluate_nodes=0
    )
    assert again.coordinator.step == 25
    assert np.allclose(found.arrays["w0"].numpy(), 4.5, atol=1.0)


def test_a_node_that_fails_in_training_is_not_in_the_sum(flower, aggregator, tmp_path):
    def fail(message, context):
        raise RuntimeError("killed while it trains")

    server = PacedServer("pace-async", secure=aggregator(), clock="reported")
    grid = federation(flower, tmp_path / "keys", [], fail)
    found = server.start(grid, flower.arrays([0.0]), 20, evaluate_nodes=0)
    assert np.allclose(found.arrays["w0"].numpy(), np.mean([n for n in range(NODES) if n != 3]), atol=1.0)


def test_noise_ends_with_the_budgets(flower, aggregator, tmp_path):
    pytest.importorskip("dp_accounting")
    secure = aggregator(epsilon=5.0, clip=0.5, releases=3, mechanism="ftrl")
    server = PacedServer("fedbuff", buffer=6, secure=secure, clock="reported", nodes_seconds=0)
    server.start(federation(flower, tmp_path / "keys", []), flower.arrays([0.0, 0.0]), 40, evaluate_nodes=0)
    assert 2 <= server.coordinator.step < 40
    assert len(secure.spent) > NODES - 4
    assert 0 < secure.facts["epsilon"] <= 5.0 + 1e-6


def test_models_in_the_clear_are_refused(flower, aggregator, tmp_path):
    with pytest.raises(InputError, match="use PacedServer with secure="):
        PacedStrategy(FedAvg(), "pace", secure=aggregator())
    with pytest.raises(InputError, match="a robust rule compares single updates"):
        PacedServer("fedbuff", secure=aggregator(), robust="median")
    # A client with the mod sends nothing to a server that asks for its model.
    plain = SimpleNamespace(metadata=SimpleNamespace(message_type="train"), content=RecordDict())
    with pytest.raises(InputError, match="no other leaves this client"):
        sealed_mod(tmp_path / "keys" / "client.json")(plain, None, lambda message, context: pytest.fail("it trained"))
