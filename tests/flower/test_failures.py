"""Nodes that fail, lie, come and go."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
from flower_fleet import fleet, mod
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg

import fedpace
from fedpace._base.errors import InputError
from fedpace.flower import PacedStrategy, reported_seconds


def column(strategy, name):
    return dict(zip(strategy.coordinator.clients, strategy.coordinator.ledger.columns[name].tolist(), strict=True))


def boom(message, context):
    raise RuntimeError("out of memory")


def start(flower):
    return flower.arrays([0.0, 0.5, 1.0])


def test_an_exception_and_a_dead_node_are_failures_and_training_goes_on(flower):
    grid = fleet(flower, apps={1: flower.app([mod(flower)], fail=boom)})
    strategy = PacedStrategy(FedAvg(), "random", k=6, clock="reported")
    record = flower.rounds(strategy, grid, start(flower), 1)
    grid.dead.add(104)
    record = flower.rounds(strategy, grid, record, 1, first=2)
    assert column(strategy, "failures") == {f"partition-{c}": {1: 2, 4: 1}.get(c, 0) for c in range(6)}
    assert column(strategy, "participations")["partition-0"] == 2
    del grid.nodes[104]
    sent = len(grid.trained())
    flower.rounds(strategy, grid, record, 1, first=3)
    assert 104 not in grid.trained()[sent:]
    assert column(strategy, "failures")["partition-4"] == 1


def test_nobody_answering_leaves_the_model_as_it_is(flower):
    grid = fleet(flower)
    grid.dead.update(grid.nodes)
    strategy = PacedStrategy(FedAvg(), "random", k=3, clock="reported", name_seconds=0)
    record = start(flower)
    assert flower.rounds(strategy, grid, record, 2) is record
    assert strategy.coordinator.step == 2


def test_nodes_that_never_said_who_they_are_are_not_used(flower):
    grid = fleet(flower)
    grid.dead.update(grid.nodes)
    strategy = PacedStrategy(FedAvg(), "random", k=3, clock="reported")
    record = start(flower)
    assert flower.rounds(strategy, grid, record, 1) is record
    assert len(strategy.coordinator) == 0
    grid.dead.clear()
    assert flower.rounds(strategy, grid, record, 1, first=2) is not record


def test_a_node_that_joins_later_is_used(flower):
    grid = fleet(flower, 4)
    strategy = PacedStrategy(FedAvg(), "delayhet-submodular", clock="reported")
    record = flower.rounds(strategy, grid, start(flower), 2)
    grid.add(999, flower.app([mod(flower)]), **{"partition-id": 77})
    flower.rounds(strategy, grid, record, 2, first=3)
    assert "partition-77" in strategy.coordinator.clients
    assert 999 in grid.trained()


def test_the_first_round_waits_for_as_many_nodes_as_the_scheme_chooses(flower, monkeypatch):
    from fedpace.flower import federation as module

    monkeypatch.setattr(module, "POLL_SECONDS", 0.0)
    grid = fleet(flower, 3)

    def one_more():
        client = len(grid.nodes)
        if client < 5 and not grid.trained():
            grid.add(100 + client, flower.app([mod(flower)]), **{"partition-id": client})
        return list(grid.nodes)

    grid.get_node_ids = one_more
    strategy = PacedStrategy(FedAvg(), "random", k=5, clock="reported")
    record = flower.rounds(strategy, grid, start(flower), 1)
    assert sorted(grid.trained()) == [100, 101, 102, 103, 104]
    del grid.nodes[104]  # later it goes on with fewer
    flower.rounds(strategy, grid, record, 1, first=2)
    assert len(grid.nodes) == 4


def test_too_few_nodes_are_not_waited_for_without_end(flower, caplog):
    grid = fleet(flower, 3)
    strategy = PacedStrategy(FedAvg(), "random", k=5, clock="reported", nodes_seconds=0.0)
    with caplog.at_level(logging.WARNING, "flwr"):
        record = flower.rounds(strategy, grid, start(flower), 2)
    assert "3 nodes are connected after 0 s, but random selects 5: continuing" in caplog.text
    assert sorted(grid.trained()) == [100, 100, 101, 101, 102, 102]
    assert strategy._scheme.k == 5  # as soon as there are five, five are chosen
    for client in range(3, 7):
        grid.add(100 + client, flower.app([mod(flower)]), **{"partition-id": client})
    flower.rounds(strategy, grid, record, 1, first=3)
    assert len(grid.trained()) == 6 + 5


def test_fewer_nodes_than_the_inner_strategy_wants_is_an_error(flower):
    grid = fleet(flower, 1)
    strategy = PacedStrategy(FedAvg(min_available_nodes=2), "random", k=1, nodes_seconds=0.0)
    with pytest.raises(InputError, match="1 nodes are connected after 0 s, but the inner strategy wants at least 2"):
        flower.rounds(strategy, grid, start(flower), 1)


def test_a_client_that_reconnects_keeps_its_history(flower):
    grid = fleet(flower, 4)
    strategy = PacedStrategy(FedAvg(), "random", k=4, clock="reported")
    record = flower.rounds(strategy, grid, start(flower), 1)
    del grid.nodes[103]
    grid.add(555, flower.app([mod(flower)]), **{"partition-id": 3})
    flower.rounds(strategy, grid, record, 1, first=2)
    assert len(strategy.coordinator) == 4
    assert column(strategy, "participations")["partition-3"] == 2


def test_names_that_two_nodes_use_are_told_apart(flower, caplog):
    grid = flower.grid()
    for node in (7, 8):
        grid.add(node, flower.app([mod(flower)]), name="phone", **{"partition-id": 0})
    strategy = PacedStrategy(FedAvg(), "random", k=2, clock="reported")
    with caplog.at_level(logging.WARNING, "flwr"):
        flower.rounds(strategy, grid, start(flower), 1)
    assert len(strategy.coordinator) == 2
    assert "phone" in strategy.coordinator.clients
    assert "but another node has this name" in caplog.text


def test_a_client_without_the_mod_works_by_the_servers_clock(flower, caplog):
    apps = {1: flower.app()}
    grid = fleet(flower, 3, apps=apps)
    strategy = PacedStrategy(FedAvg(), "delayhet-submodular", warmup="full", warmup_wait=1.0, clock="server")
    record = start(flower)
    with caplog.at_level(logging.WARNING, "flwr"):
        assert flower.rounds(strategy, grid, record, 3) is not record
    assert "node-101" in strategy.coordinator.clients
    assert 0 <= column(strategy, "delay")["node-101"] < 60
    assert "delayhet-submodular needs feature moments, 'node-101' sent none" in caplog.text
    assert "1 of 3 new nodes have no name" in caplog.text


@pytest.mark.parametrize("loss", [math.inf, math.nan])
def test_a_client_that_diverged_counts_as_failed(flower, loss):
    grid = fleet(flower, 3, apps={2: flower.app([mod(flower)], loss=loss, target=math.nan)})
    strategy = PacedStrategy(FedAvg(), "random", k=3, clock="reported")
    record = flower.rounds(strategy, grid, start(flower), 1)
    assert np.isfinite(record["w0"].numpy()).all()
    assert column(strategy, "failures")["partition-2"] == 1


@pytest.mark.parametrize(
    "lie",
    [
        {"seconds": -1.0},
        {"seconds": math.inf},
        {"seconds": "soon"},
        {"moment": b"1234", "shape": [9, 9]},
        {"moment": b"12345678", "shape": [1, 2, 3]},
        {"moment": np.full((2, 4), np.nan, "<f4").tobytes(), "shape": [2, 4]},
        {"moment": np.ones((2, 9), "<f4").tobytes(), "shape": [2, 9]},
    ],
    ids=["negative", "infinite", "text", "short", "shape", "nan", "width"],
)
def test_a_client_that_reports_nonsense_stops_nobody(flower, lie, caplog):
    def liar(message, context, call_next):
        reply = call_next(message, context)
        if reply.content.array_records:
            reply.content["fedpace"] = ConfigRecord({**reply.content["fedpace"], **lie})
        return reply

    grid = fleet(flower, 4, apps={3: flower.app([liar, mod(flower)])})
    strategy = PacedStrategy(FedAvg(), "delayhet-submodular", warmup="full", warmup_wait=1.0, clock="reported")
    record = start(flower)
    with caplog.at_level(logging.WARNING, "flwr"):
        assert flower.rounds(strategy, grid, record, 3) is not record
    assert "'partition-3'" in caplog.text
    assert "failed in this round" in caplog.text or "is not used" in caplog.text
    assert not strategy.coordinator.ledger.moments.known[3]


def other_model(**arrays):
    def lie(reply):
        given = {key: array.numpy() for key, array in reply.content["arrays"].items()}
        made = {key: Array(np.asarray(value)) for key, value in {**given, **arrays}.items() if value is not None}
        reply.content["arrays"] = ArrayRecord(made)

    return lie


def broken_bytes(reply):
    reply.content["arrays"]["w0"].data = b"not an array"


def other_metrics(**entries):
    return lambda reply: reply.content["metrics"].update(entries)


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (other_model(w0=np.zeros(4)), "should have shape (3,)"),
        (other_model(w0=np.array(1.0)), "should have shape (3,)"),
        (other_model(w0=np.array([0.0, np.nan, 0.0])), "NaN or infinity"),
        (other_model(w0=None, w1=np.zeros(3)), "missing or new"),
        (other_model(w1=np.zeros(3)), "missing or new"),
        (broken_bytes, "cannot be read"),
        (lambda reply: reply.content.pop("arrays"), "no model came"),
        (other_metrics(train_loss=[0.5]), "the loss should be a number"),
        (other_metrics(train_loss=math.nan), "training diverged"),
        (other_metrics(**{"num-examples": -1}), "at least 0"),
        (other_metrics(**{"num-examples": [1]}), "should be a number"),
    ],
)
def test_a_wrong_answer_is_a_failure_of_that_client_alone(flower, lie, reason, caplog):
    def liar(message, context, call_next):
        reply = call_next(message, context)
        if reply.content.array_records:
            lie(reply)
        return reply

    grid = fleet(flower, 4, apps={3: flower.app([liar, mod(flower)])})
    strategy = PacedStrategy(FedAvg(), "random", k=4, clock="reported")
    with caplog.at_level(logging.WARNING, "flwr"):
        record = flower.rounds(strategy, grid, start(flower), 2)
    assert "'partition-3' failed in this round: " in caplog.text
    assert reason in caplog.text
    assert column(strategy, "failures") == {f"partition-{c}": 2 * (c == 3) for c in range(4)}
    np.testing.assert_allclose(record["w0"].numpy()[0], (1 - 0.7**2) * 2.0, rtol=1e-6)


@pytest.mark.parametrize("odd", [{"more": 1.0}, {"share": [1.0, 2.0]}, {"share": math.inf}])
def test_metrics_that_not_everybody_has_are_left_out(flower, odd):
    """Flower's strategies refuse the whole round where one client's metrics differ."""

    def other(message, context, call_next):
        reply = call_next(message, context)
        if reply.content.metric_records:
            reply.content["metrics"].update({"share": 0.5} | (odd if context.node_config["partition-id"] == 2 else {}))
        return reply

    apps = {client: flower.app([other, mod(flower)], target=1.0 + client) for client in range(3)}
    strategy = PacedStrategy(FedAvg(), "random", k=3, clock="reported")
    grid, record = fleet(flower, 3, apps=apps), start(flower)
    strategy.configure_train(1, record, flower.config(), grid)
    arrays, metrics = strategy.aggregate_train(1, [])
    np.testing.assert_allclose(arrays["w0"].numpy()[0], 0.3 * 2.0, rtol=1e-6)
    assert set(metrics) == ({"train_loss", "share"} if "share" not in odd else {"train_loss"})


def test_who_reports_more_than_the_deadline_is_late(flower):
    grid = fleet(flower, 5)
    strategy = PacedStrategy(FedAvg(), "random", k=5, clock="reported", deadline=3.5)
    record = flower.rounds(strategy, grid, start(flower), 1)
    assert strategy.coordinator.now == 3.5
    assert [name for name, failed in column(strategy, "failures").items() if failed] == ["partition-3", "partition-4"]
    np.testing.assert_allclose(record["w0"].numpy()[0], 0.3 * np.mean([1.0, 2.0, 3.0]), rtol=1e-6)


def test_a_deadline_below_what_the_framework_needs_cuts_nobody_off(flower, monkeypatch):
    """Replies take three seconds, of which clients compute none; then one is there after one second."""
    from fedpace.hosting import reply_loop

    now, looks = [0.0], [0]
    monkeypatch.setattr(reply_loop, "monotonic", lambda: now[0])
    monkeypatch.setattr(reply_loop, "POLL_SECONDS", 0.0)
    grid = fleet(flower, 3)
    pull, fast = grid.pull_messages, set()

    def slow(ids):
        now[0], looks[0] = now[0] + 1.0, looks[0] + 1
        return pull([i for i in ids if looks[0] == 3 or grid._replies[i].metadata.src_node_id in fast])

    grid.pull_messages = slow
    strategy = PacedStrategy(FedAvg(), "random", k=3, deadline=0.5, name_seconds=0)
    record = flower.rounds(strategy, grid, start(flower), 1)
    assert 2.0 < strategy._server.loop.latency <= 3.0
    looks[0] = 0
    fast.add(100)
    flower.rounds(strategy, grid, record, 1, first=2)
    assert sum(column(strategy, "failures").values()) == 0


class Three(fedpace.core.types.Stateless):
    """Five clients, of which three are enough."""

    name = "three"
    needs = frozenset()

    def select(self, state, view, rng):
        return fedpace.Cohort(np.arange(5), np.full(5, 0.2), quorum=3), None


def test_enough_replies_end_the_wait(flower):
    """Replies of two nodes never come."""
    grid = fleet(flower, 5)
    pull = grid.pull_messages
    grid.pull_messages = lambda ids: [reply for reply in pull(ids) if reply.metadata.src_node_id not in {103, 104}]
    strategy = PacedStrategy(FedAvg(), Three(), name_seconds=0)
    record = flower.rounds(strategy, grid, start(flower), 1)
    failed = [name for name, failures in column(strategy, "failures").items() if failures]
    assert failed == ["node-103", "node-104"]
    np.testing.assert_allclose(record["w0"].numpy()[0], 0.3 * np.mean([1.0, 2.0, 3.0]), rtol=1e-6)


def test_a_deadline_never_ends_a_round_that_nobody_has_answered(flower, monkeypatch):
    """Flower needs longer than the deadline for every single task: the first to answer is waited for all the same."""
    from fedpace.hosting import reply_loop

    monkeypatch.setattr(reply_loop, "POLL_SECONDS", 0.0)
    grid = fleet(flower, 3)
    looks, pull = [], grid.pull_messages

    def slow(ids):
        looks.append(len(ids))
        return pull([i for i in ids if len(looks) > 5 and grid._replies[i].metadata.src_node_id == 101])

    grid.pull_messages = slow
    strategy = PacedStrategy(FedAvg(), "random", k=3, deadline=1e-9, name_seconds=0)
    record = flower.rounds(strategy, grid, start(flower), 1)
    np.testing.assert_allclose(record["w0"].numpy()[0], 0.3 * 2.0, rtol=1e-6)
    assert len(looks) > 5
    assert column(strategy, "failures") == {"node-100": 1, "node-101": 0, "node-102": 1}
    assert column(strategy, "delay")["node-101"] > 0, "from sending to seeing the reply"


def test_who_says_nothing_at_all_has_failed_after_flowers_timeout(flower, monkeypatch, caplog):
    from fedpace.hosting import reply_loop

    monkeypatch.setattr(reply_loop, "POLL_SECONDS", 0.0)
    grid = fleet(flower, 3)
    pull = grid.pull_messages
    grid.pull_messages = lambda ids: [reply for reply in pull(ids) if reply.metadata.src_node_id != 102]
    strategy = PacedStrategy(FedAvg(), "random", k=3, name_seconds=0)
    with caplog.at_level(logging.WARNING, "flwr"):
        strategy.start(grid, start(flower), num_rounds=1, timeout=0.05)
    assert "'node-102' failed in this round: no reply within 0.05 s" in caplog.text
    assert strategy.coordinator.step == 1


def test_seconds_are_those_of_the_mod(flower):
    grid = fleet(flower, 3)
    strategy = PacedStrategy(FedAvg(), "random", k=3, clock="reported")
    strategy.configure_train(1, start(flower), flower.config(), grid)
    replies = [reply.carrier for _, _, reply in strategy._server.answers(strategy._step)]
    assert sorted(reported_seconds(reply) for reply in replies) == [1.0, 2.0, 3.0]
    strategy.aggregate_train(1, [])
    assert strategy.coordinator.now == 3.0
    delays = column(strategy, "delay")  # estimates, which lean towards each other
    assert 1.0 <= delays["partition-0"] < delays["partition-1"] < delays["partition-2"] < 3.5


def test_a_selector_of_ones_own_works(flower):
    strategy = PacedStrategy(FedAvg(), fedpace.make_selector("flanp"), clock="reported", warmup="full", warmup_wait=1.0)
    record = start(flower)
    assert flower.rounds(strategy, fleet(flower), record, 3) is not record
