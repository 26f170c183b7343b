"""Nodes that fail, lie, come and go; a server that is stopped and started again."""

from __future__ import annotations

import json
import logging
import math

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import Fedadam, FedAvg

import fedpace
from fedpace.core.errors import InputError
from fedpace.flower import PacedStrategy, report_mod, reported_seconds
from fedpace.flower.grid import PatientGrid


def mod(flower, seconds=lambda client: 1.0 + client):
    return report_mod(
        features=lambda message, context: flower.rows(context.node_config["partition-id"]),
        delay=lambda message, context, measured: seconds(context.node_config["partition-id"]),
    )


def fleet(flower, count=6, *, offset=100, apps=None):
    grid = flower.grid()
    for client in range(count):
        app = (apps or {}).get(client) or flower.app([mod(flower)], target=1.0 + client)
        grid.add(offset + client, app, **{"partition-id": client})
    return grid


def column(strategy, name):
    return dict(zip(strategy.session.clients, strategy.session._ledger.columns[name].tolist(), strict=True))


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
    assert strategy.session.step == 2


def test_nodes_that_never_said_who_they_are_are_not_used(flower):
    grid = fleet(flower)
    grid.dead.update(grid.nodes)
    strategy = PacedStrategy(FedAvg(), "random", k=3, clock="reported")
    record = start(flower)
    assert flower.rounds(strategy, grid, record, 1) is record
    assert len(strategy.session) == 0
    grid.dead.clear()
    assert flower.rounds(strategy, grid, record, 1, first=2) is not record


def test_a_node_that_joins_later_is_used(flower):
    grid = fleet(flower, 4)
    strategy = PacedStrategy(FedAvg(), "delayhet-submodular", clock="reported")
    record = flower.rounds(strategy, grid, start(flower), 2)
    grid.add(999, flower.app([mod(flower)]), **{"partition-id": 77})
    flower.rounds(strategy, grid, record, 2, first=3)
    assert "partition-77" in strategy.session.clients
    assert 999 in grid.trained()


def test_the_first_round_waits_for_as_many_nodes_as_the_scheme_chooses(flower, monkeypatch):
    from fedpace.flower import strategy as module

    monkeypatch.setattr(module, "POLL", 0.0)
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
    assert "3 nodes are connected after 0 s, and random chooses 5: going on" in caplog.text
    assert sorted(grid.trained()) == [100, 100, 101, 101, 102, 102]
    assert strategy.session.selector.k == 5  # as soon as there are five, five are chosen
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
    assert len(strategy.session) == 4
    assert column(strategy, "participations")["partition-3"] == 2


def test_names_that_two_nodes_use_are_told_apart(flower, caplog):
    grid = flower.grid()
    for node in (7, 8):
        grid.add(node, flower.app([mod(flower)]), name="phone", **{"partition-id": 0})
    strategy = PacedStrategy(FedAvg(), "random", k=2, clock="reported")
    with caplog.at_level(logging.WARNING, "flwr"):
        flower.rounds(strategy, grid, start(flower), 1)
    assert len(strategy.session) == 2
    assert "phone" in strategy.session.clients
    assert "as another does" in caplog.text


def test_a_client_without_the_mod_works_by_the_servers_clock(flower, caplog):
    apps = {1: flower.app()}
    grid = fleet(flower, 3, apps=apps)
    strategy = PacedStrategy(FedAvg(), "delayhet-submodular", warmup="full", clock="server")
    record = start(flower)
    with caplog.at_level(logging.WARNING, "flwr"):
        assert flower.rounds(strategy, grid, record, 3) is not record
    assert "node-101" in strategy.session.clients
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
    strategy = PacedStrategy(FedAvg(), "delayhet-submodular", warmup="full", clock="reported")
    record = start(flower)
    with caplog.at_level(logging.WARNING, "flwr"):
        assert flower.rounds(strategy, grid, record, 3) is not record
    assert "'partition-3'" in caplog.text
    assert "not used" in caplog.text
    assert not strategy.session._ledger.moments.known[3]


def test_who_reports_more_than_the_deadline_is_late(flower):
    grid = fleet(flower, 5)
    strategy = PacedStrategy(FedAvg(), "random", k=5, clock="reported", deadline=3.5)
    record = flower.rounds(strategy, grid, start(flower), 1)
    assert strategy.session.now == 3.5
    assert [name for name, failed in column(strategy, "failures").items() if failed] == ["partition-3", "partition-4"]
    np.testing.assert_allclose(record["w0"].numpy()[0], 0.3 * np.mean([1.0, 2.0, 3.0]), rtol=1e-6)


def test_enough_replies_end_the_wait(flower):
    """Replies of nodes that are not among the first three are never fetched."""
    grid = fleet(flower, 5)
    late = {103, 104}
    pull = grid.pull_messages

    def some(message_ids):
        return [reply for reply in pull(message_ids) if reply.metadata.src_node_id not in late]

    grid.pull_messages = some
    patient = PatientGrid(grid, lambda messages: (30.0, 3))
    strategy = PacedStrategy(FedAvg(), "random", k=5, name_seconds=0)
    messages = strategy.configure_train(1, start(flower), flower.config(), patient)
    replies = patient.send_and_receive(messages, timeout=100)
    assert {reply.metadata.src_node_id for reply in replies} == {100, 101, 102}
    strategy.aggregate_train(1, replies)
    failed = [name for name, failures in column(strategy, "failures").items() if failures]
    assert failed == ["node-103", "node-104"]


def test_a_deadline_is_the_timeout_of_flowers_wait(flower):
    grid = fleet(flower, 3)
    asked = []
    grid.send_and_receive = lambda messages, timeout=None: asked.append(timeout) or []
    PatientGrid(grid, lambda messages: (7.0, 0)).send_and_receive([], timeout=100)
    PatientGrid(grid, lambda messages: (math.inf, 0)).send_and_receive([], timeout=100)
    PatientGrid(grid, lambda messages: (math.inf, 0)).send_and_receive([])
    assert asked == [7.0, 100, None]


def test_a_restarted_server_goes_on_where_it_was(flower, tmp_path):
    def strategy(folder):
        return PacedStrategy(Fedadam(eta=0.1), "delayhet-sampling", k=3, seed=4, clock="reported", state=folder)

    whole = strategy(tmp_path / "whole").start(fleet(flower), start(flower), num_rounds=6)
    strategy(tmp_path / "parts").start(fleet(flower), start(flower), num_rounds=3)
    # Flower gives every node another id when it starts again.
    second = strategy(tmp_path / "parts")
    assert second.session.step == 3
    assert second.session.now > 0
    seen = []
    result = second.start(
        fleet(flower, offset=7000), start(flower), num_rounds=6, evaluate_fn=lambda number, _: seen.append(number)
    )
    assert seen == [3, 4, 5, 6]
    assert sorted(result.train_metrics_clientapp) == [4, 5, 6]
    np.testing.assert_allclose(result.arrays["w0"].numpy(), whole.arrays["w0"].numpy(), rtol=1e-5)
    diaries = [
        [json.loads(line) for line in (tmp_path / part / "rounds.jsonl").read_text().splitlines()]
        for part in ("whole", "parts")
    ]
    for one, other in zip(*diaries, strict=True):
        assert (one["clients"], one["weights"], one["clock"]) == (other["clients"], other["weights"], other["clock"])
    finished = strategy(tmp_path / "parts").start(fleet(flower), start(flower), num_rounds=6)
    np.testing.assert_array_equal(finished.arrays["w0"].numpy(), result.arrays["w0"].numpy())
    assert not list(tmp_path.rglob("*.pkl"))
    assert len(list((tmp_path / "parts").glob("session-*"))) == 1


def test_a_crash_between_the_two_files_leaves_the_round_before(flower, tmp_path, monkeypatch):
    from fedpace.hosting import state

    def strategy():
        return PacedStrategy(FedAvg(), "random", k=3, clock="reported", state=tmp_path)

    first = strategy()
    record = flower.rounds(first, fleet(flower), start(flower), 2)
    monkeypatch.setattr(state, "json_bytes", lambda index: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        flower.rounds(first, fleet(flower), record, 1, first=3)
    restored = strategy()
    assert restored.session.step == 2
    np.testing.assert_array_equal(restored._arrays["w0"].numpy(), record["w0"].numpy())


def test_another_scheme_seed_or_strategy_does_not_take_over(flower, tmp_path):
    flower.rounds(PacedStrategy(Fedadam(), "random", k=3, state=tmp_path), fleet(flower), start(flower), 1)
    with pytest.raises(InputError, match="give the same"):
        PacedStrategy(Fedadam(), "random", k=4, state=tmp_path)
    with pytest.raises(InputError, match="seed = 0"):
        PacedStrategy(Fedadam(), "random", k=3, seed=1, state=tmp_path)
    with pytest.raises(InputError, match="another strategy"):
        PacedStrategy(FedAvg(), "random", k=3, state=tmp_path)


def test_seconds_are_those_of_the_mod(flower):
    grid = fleet(flower, 3)
    strategy = PacedStrategy(FedAvg(), "random", k=3, clock="reported")
    replies = list(grid.send_and_receive(strategy.configure_train(1, start(flower), flower.config(), grid)))
    assert sorted(reported_seconds(reply) for reply in replies) == [1.0, 2.0, 3.0]
    strategy.aggregate_train(1, replies)
    assert strategy.session.now == 3.0
    delays = column(strategy, "delay")  # estimates, which lean towards each other
    assert 1.0 <= delays["partition-0"] < delays["partition-1"] < delays["partition-2"] < 3.5


def test_a_selector_of_ones_own_works(flower):
    strategy = PacedStrategy(FedAvg(), fedpace.make_selector("flanp"), clock="reported", warmup="full")
    record = start(flower)
    assert flower.rounds(strategy, fleet(flower), record, 3) is not record
