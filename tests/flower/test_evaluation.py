"""Evaluation on clients, in rounds and without: it is recorded, and fills the report."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from flower_fleet import fleet, start
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp.strategy import FedAvg

from fedpace.flower import PacedServer, PacedStrategy
from fedpace.flower.evaluation import NodeEvaluation
from fedpace.records.run import read_info, read_run

OPTIONS = {"clock": "reported", "k": 3}


def template(flower, number, fails=False):
    """A client as in Flower's template: it evaluates, and calls what it finds eval_acc and eval_loss."""
    made = flower.app([], target=1.0 + number)
    app = ClientApp()
    app.train()(lambda message, context: made(message, context))

    @app.evaluate()
    def evaluate(message, context):
        if fails:
            raise RuntimeError("no test data")
        metrics = MetricRecord({"num-examples": 1 + number, "eval_acc": 0.1 * number, "eval_loss": 2.0 - number})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def templates(flower, count=4):
    grid = flower.grid()
    for number in range(count):
        grid.add(10 + number, template(flower, number), **{"partition-id": number})
    return grid


def evaluated(grid):
    return [m.metadata.dst_node_id for m in grid.sent if m.metadata.message_type == "evaluate"]


ACCURACY = (0 + 2 * 0.1 + 3 * 0.2 + 4 * 0.3) / 10
LOSS = (1 * 2 + 2 * 1 + 3 * 0 + 4 * -1) / 10


def test_what_clients_find_is_recorded(flower, tmp_path):
    PacedStrategy(FedAvg(), "random", **OPTIONS, state=tmp_path).start(templates(flower), start(flower), 3)
    run = read_run(tmp_path)
    assert (run.info.metric, run.info.direction) == ("accuracy", "up")
    assert [entry.metric for entry in run.rounds] == [None, *[pytest.approx(ACCURACY)] * 3]
    assert [entry.loss for entry in run.rounds[1:]] == [pytest.approx(LOSS)] * 3


def test_clients_that_find_only_a_loss(flower, tmp_path):
    """The description of the run is written before the first evaluation; a restarted server keeps the metric."""
    for rounds in (2, 4):
        PacedStrategy(FedAvg(), "random", **OPTIONS, state=tmp_path).start(fleet(flower), start(flower), rounds)
        run = read_run(tmp_path)
        assert (run.info.metric, run.info.direction) == ("loss", "down")
        assert [entry.metric for entry in run.rounds] == [None, *[pytest.approx(0.5)] * rounds]


def test_the_evaluation_of_the_server_counts_where_there_is_one(flower, tmp_path):
    strategy = PacedStrategy(FedAvg(), "random", **OPTIONS, state=tmp_path)
    strategy.start(templates(flower), start(flower), 2, evaluate_fn=lambda n, a: MetricRecord({"accuracy": 0.9}))
    assert [entry.metric for entry in read_run(tmp_path).rounds] == [0.9] * 3


def test_without_rounds_a_sample_of_free_nodes_evaluates(flower, tmp_path, caplog):
    grid = templates(flower, 8)
    server = PacedServer("fedbuff", buffer=2, clock="reported", state=tmp_path)
    asked = []
    push = grid.push_messages

    def watching(messages):
        messages = list(messages)
        working = {str(task.client) for task in server.coordinator.tasks}
        for message in messages:
            if message.metadata.message_type == "evaluate":
                asked.append(f"partition-{message.metadata.dst_node_id - 10}")
                assert asked[-1] not in working, "it has no task"
        return push(messages)

    grid.push_messages = watching
    with caplog.at_level(logging.INFO, "flwr"):
        result = server.start(grid, start(flower), 12, evaluate_every=1e-9)
    run = read_run(tmp_path)
    assert run.info.metric == "accuracy"
    metrics = [entry.metric for entry in run.rounds if entry.metric is not None]
    assert metrics
    assert all(0 < metric < 0.7 for metric in metrics)
    assert len(result.evaluate_metrics_clientapp) >= len(metrics)
    assert len(set(asked)) > 5, "other nodes each time"
    assert "nodes evaluated the model of step" in caplog.text
    assert "fedpace: fedbuff, step 1 at" in caplog.text
    assert "2 clients, training loss 0.5" in caplog.text


@pytest.mark.parametrize(("options", "count"), [({}, 10), ({"evaluate_nodes": 2}, 4), ({"evaluate_nodes": 0}, 0)])
def test_evaluation_costs_no_more_than_is_said(flower, options, count, tmp_path):
    """Five nodes at the start, five at the end, and none in between if all is over within five seconds."""
    grid = templates(flower, 8)
    PacedServer("fedbuff", buffer=2, state=tmp_path).start(grid, start(flower), 6, **options)
    assert len(evaluated(grid)) == count
    if count:
        assert read_run(tmp_path).rounds[-1].metric is not None, "the last model was evaluated"


def test_evaluations_are_dense_at_first_and_leave_nodes_nine_tenths_of_their_time(flower, monkeypatch):
    clock, sent = [0.0], []
    monkeypatch.setattr("fedpace.flower.evaluation.time.monotonic", lambda: clock[0])

    def began(seconds, most):
        """Return when evaluations began, if each takes so many seconds."""
        grid = templates(flower, 1)
        pull = grid.pull_messages
        grid.pull_messages = lambda ids: pull(ids) if clock[0] >= times[-1] + seconds else []
        clock[0], times = 0.0, []
        one = NodeEvaluation(
            1, None, 60, ConfigRecord(), weight_key="num-examples", array_key="arrays", config_key="config"
        )
        while clock[0] < most:
            before = one.pending
            if not before:
                sent[:] = evaluated(grid)
                times.append(clock[0])
            one.update(grid, {"a": 10}, lambda name: True, start(flower), 0, clock[0], np.random.default_rng(0))
            if not before and len(evaluated(grid)) == len(sent):
                times.pop()
            clock[0] += 0.25
        return times

    assert began(0.25, 20)[:4] == [0, 5, 10, 15]
    assert began(3.0, 100) == [0, 30, 60, 90]
    assert began(20.0, 130) == [0, 60, 120]


def test_clients_that_cannot_evaluate_do_not_hold_the_end_up(flower, caplog):
    grid = flower.grid()
    for number in range(4):
        grid.add(10 + number, template(flower, number, fails=True), **{"partition-id": number})
    with caplog.at_level(logging.INFO, "flwr"):
        PacedServer("fedbuff", buffer=2).start(grid, start(flower), 3)
    assert "within a minute" not in caplog.text


def test_nodes_do_not_evaluate_where_the_server_does(flower):
    grid = templates(flower)
    PacedServer("fedbuff", buffer=2).start(grid, start(flower), 3, evaluate_fn=lambda n, a: None)
    assert not evaluated(grid)


def test_a_node_that_fails_in_evaluation_stops_nothing(flower, tmp_path):
    grid = templates(flower)
    grid.add(13, template(flower, 3, fails=True), **{"partition-id": 3})
    server = PacedServer("fedbuff", buffer=2, clock="reported", state=tmp_path)
    server.start(grid, start(flower), 6, evaluate_every=1e-9, evaluate_nodes=4)
    metrics = [entry.metric for entry in read_run(tmp_path).rounds if entry.metric is not None]
    assert pytest.approx((2 * 0.1 + 3 * 0.2) / 6) in metrics


@pytest.mark.parametrize("rounds", [True, False])
def test_a_restarted_server_is_running_before_its_first_step(flower, tmp_path, rounds):
    """`fedpace watch` must not call it interrupted while it waits for nodes."""

    def server():
        made = {"clock": "reported", "state": tmp_path}
        return PacedStrategy(FedAvg(), "random", k=2, **made) if rounds else PacedServer("fedbuff", buffer=2, **made)

    def interrupted(number, arrays):
        if number == 2:
            raise KeyboardInterrupt
        return

    with pytest.raises(KeyboardInterrupt):
        server().start(fleet(flower), start(flower), 4, evaluate_fn=interrupted)
    assert read_info(tmp_path).status == "interrupted"
    grid = fleet(flower)
    states, nodes = [], grid.get_node_ids
    grid.get_node_ids = lambda: states.append(read_info(tmp_path).status) or nodes()
    server().start(grid, start(flower), 4)
    assert set(states) == {"running"}
    assert read_info(tmp_path).status == "finished"


@pytest.mark.parametrize("shares", ["uniform", "samples"])
def test_registered_nodes_keep_their_names(flower, shares, caplog):
    """Their names come from the SuperLink; they are asked only if something else must be known of them."""
    grid = templates(flower)
    names = {10: ("anna", "Ghent"), 11: ("bert", ""), 12: ("", ""), 13: ("", "")}
    grid.get_nodes = lambda: [NodeInfo(node_id=n, name=name, location=place) for n, (name, place) in names.items()]
    strategy = PacedStrategy(FedAvg(), "random", k=2, clock="reported", shares=shares)
    with caplog.at_level(logging.INFO, "flwr"):
        strategy.configure_train(1, start(flower), flower.config(), grid)
    asked = sorted(m.metadata.dst_node_id for m in grid.sent if "arrays" not in m.content)
    assert asked == ([12, 13] if shares == "uniform" else [10, 11, 12, 13])
    if shares == "uniform":
        assert set(strategy.coordinator.clients) == {"anna", "bert", "node-12", "node-13"}
    assert "node 10 is registered as 'anna' at 'Ghent'" in caplog.text
    strategy.close()
