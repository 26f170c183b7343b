"""The catalogue of bad replies against a Flower server that is stopped and restarted after every round."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
from functools import partial

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg

from fedpace._base.errors import InputError
from fedpace.flower import PacedServer, PacedStrategy, report_mod
from fedpace.hosting import reply_loop
from fedpace.records.run import read_run
from fedpace.testing import hostile
from fedpace.testing.hostile import CATALOGUE, CLIENTS, LIAR, ROUNDS, Played, check_host
from fedpace.trust.limits import WEIGHT_BURST, WEIGHT_RATE

FEW = FedAvg(min_available_nodes=1, min_train_nodes=1)


def changed(change):
    """Pass what the client sends through `change`, part by part."""

    def mod(message, context, call_next):
        reply = call_next(message, context)
        if not reply.content.array_records:
            return reply
        made = change(
            hostile.ClientReply(
                model={key: array.numpy() for key, array in reply.content["arrays"].items()},
                metrics={"train_loss": reply.content["metrics"]["train_loss"]},
                samples=reply.content["metrics"]["num-examples"],
                note=dict(reply.content["fedpace"]),
            )
        )
        del reply.content["arrays"]
        if made.model is not None:
            arrays = {key: Array(np.asarray(array)) for key, array in made.model.items()}
            reply.content["arrays"] = ArrayRecord(arrays)
        reply.content["metrics"] = MetricRecord({**made.metrics, "num-examples": made.samples})
        reply.content["fedpace"] = ConfigRecord(made.note)
        return reply

    return mod


def fleet(flower, mods, count=5):
    grid = flower.grid()
    for client in range(count):
        report = report_mod(
            features=lambda message, context, client=client: flower.rows(client),
            delay=lambda message, context, measured: 1.0,  # what this machine takes would decide who is late
            transfer=False,
        )
        extra = mods.get(CLIENTS[client], ())
        grid.add(100 + client, flower.app([*extra, report], target=1.0 + client / 10), name=CLIENTS[client])
    return grid


@pytest.fixture
def play(flower, tmp_path):
    folders = itertools.count()

    def rounds(change):
        state = tmp_path / str(next(folders))
        grid, record, models = fleet(flower, {LIAR: [changed(change)]}), flower.arrays([0.0, 0.5, 1.0], [0.0]), []
        for number in range(ROUNDS):
            strategy = PacedStrategy(FedAvg(), "random", k=5, clock="reported", state=state)
            record = flower.rounds(strategy, grid, record, 1, first=number + 1)
            models.append({key: array.numpy() for key, array in record.items()})
        return Played([entry.failed for entry in read_run(state).rounds[1:]], models)

    return rounds


def test_no_reply_stops_the_server_or_reaches_the_model(play):
    check_host(play)


def test_why_a_client_failed_is_logged_once_and_recorded(flower, tmp_path, caplog):
    lie = hostile.in_note(seconds="soon")
    grid = fleet(flower, {LIAR: [changed(lie)]})
    strategy = PacedStrategy(FedAvg(), "random", k=5, clock="reported", state=tmp_path)
    with caplog.at_level(logging.WARNING, "flwr"):
        flower.rounds(strategy, grid, flower.arrays([0.0]), 3)
    assert caplog.text.count("'liar' failed in this round") == 1
    why = [entry.facts["failures"] for entry in read_run(tmp_path).rounds[1:]]
    assert why == [{"liar": "reported seconds should be a number, but 'soon' came"}] * 3


def test_who_turns_its_updates_round_is_asked_on_and_has_its_weight_only(flower, tmp_path):
    """No direction is a reason to exclude a client: an honest minority may point against the others."""
    start = np.arange(6, dtype=np.float32)
    lie = hostile.in_arrays(lambda array: 2 * start - array)
    grid = fleet(flower, {LIAR: [changed(lie)]})
    strategy = PacedStrategy(FEW, "random", k=5, clock="reported", state=tmp_path)
    for number in range(3):  # from the same model again and again, so that the lie is just the update times -1
        flower.rounds(strategy, grid, flower.arrays(start), 1, first=number + 1)
    for entry in read_run(tmp_path).rounds[1:]:
        assert set(entry.clients) == set(CLIENTS[:5])
        assert not entry.failed
        assert "excluded" not in entry.facts
    assert not strategy.coordinator.excluded


def test_who_sends_an_update_of_1e30_is_clipped_and_that_is_recorded(flower, tmp_path):
    grid = fleet(flower, {LIAR: [changed(hostile.in_arrays(lambda array: array + np.float32(1e30)))]})
    strategy = PacedStrategy(FedAvg(), "random", k=5, clock="reported", state=tmp_path)
    record = flower.rounds(strategy, grid, flower.arrays([0.0]), 2)
    assert np.abs(record["w0"].numpy()).max() < 20
    assert record["w0"].numpy().dtype == np.float32
    for entry in read_run(tmp_path).rounds[1:]:
        assert not entry.failed
        assert list(entry.facts["clipped"]) == [LIAR]
        assert 0 < entry.facts["clipped"][LIAR] < 1e-20


def test_lengths_can_be_left_unclipped(flower):
    grid = fleet(flower, {LIAR: [changed(hostile.in_arrays(lambda array: array + np.float32(1000)))]})
    strategy = PacedStrategy(FedAvg(), "random", k=5, clock="reported", clip=0)
    record = flower.rounds(strategy, grid, flower.arrays([0.0]), 1)
    assert record["w0"].numpy()[0] > 100
    with pytest.raises(InputError, match="clip"):
        PacedStrategy(FedAvg(), "random", clip=0.5)


def test_a_clipped_buffer_keeps_its_type(flower):
    """A counter that comes back as a float would be a float in every model from then on."""

    def counting(message, context, call_next):
        reply = call_next(message, context)
        if reply.content.array_records:
            lies = context.node_config.get("name") == LIAR
            reply.content["arrays"]["batches"] = Array(np.asarray(2**60 if lies else 7))
            reply.content["arrays"]["bn.running_mean"] = Array(np.full(2, 1e20 if lies else 0.5, np.float32))
        return reply

    grid = fleet(flower, {name: [counting] for name in CLIENTS})
    first = {"w0": np.zeros(3, np.float32), "batches": np.asarray(4), "bn.running_mean": np.zeros(2, np.float32)}
    strategy = PacedStrategy(FedAvg(), "random", k=5, clock="reported")
    record = flower.rounds(strategy, grid, ArrayRecord({key: Array(array) for key, array in first.items()}), 1)
    sent = strategy._server.shared.arrays
    assert {key: array.dtype for key, array in sent.items()} == {key: array.dtype for key, array in first.items()}
    assert record["bn.running_mean"].numpy().dtype == np.float32
    assert np.abs(record["bn.running_mean"].numpy()).max() < 10
    assert 0 < record["batches"].numpy() < 40


def test_those_who_have_used_up_their_weight_move_the_model_by_less(flower):
    """One client after the other has the whole step; beyond its budget only a part of its move is made."""
    grid = fleet(flower, {}, count=1)
    strategy = PacedStrategy(FEW, "random", k=1, clock="reported")
    strategy.coordinator.join([f"away-{number}" for number in range(99)])
    moved = []
    whole = round(WEIGHT_BURST)
    for number in range(whole + 3):
        record = flower.rounds(strategy, grid, flower.arrays([0.0]), 1, first=number + 1)
        moved.append(float(record["w0"].numpy()[0]))
    np.testing.assert_allclose(moved[:whole], moved[0])
    share = 1 / len(strategy.coordinator)
    np.testing.assert_allclose(moved[whole + 1 :], WEIGHT_RATE * share * moved[0], rtol=1e-5)


def test_clients_can_be_believed():
    for make in (partial(PacedStrategy, FedAvg()), PacedServer):
        assert make("random").coordinator.ledger.trust.on
        assert not make("random", trust=False).coordinator.ledger.trust.on


def wide(columns):
    moment = np.ones((1, columns), "<f4")
    return hostile.in_note(moment=moment.tobytes(), shape=[1, columns])


def test_a_width_that_comes_first_does_not_lock_the_others_out(flower, tmp_path):
    """One client is there alone, and reports another width; the others come later, and are more."""
    lie = [changed(wide(7))]
    grid = fleet(flower, {CLIENTS[0]: lie}, count=1)
    strategy = PacedStrategy(FEW, "moment-match", clock="reported", state=tmp_path)
    record = flower.rounds(strategy, grid, flower.arrays([0.0]), 4)
    assert strategy.coordinator.ledger.moments.width == 7
    grid.nodes |= fleet(flower, {CLIENTS[0]: lie}).nodes
    record = flower.rounds(strategy, grid, record, 4, first=5)
    moments = strategy.coordinator.ledger.moments
    assert moments.width == 4
    known = dict(zip(strategy.coordinator.clients, moments.known.tolist(), strict=True))
    assert known == {client: client != CLIENTS[0] for client in CLIENTS}
    # Votes are remembered with the state.
    again = PacedStrategy(FEW, "moment-match", clock="reported", state=tmp_path)
    flower.rounds(again, grid, record, 2, first=9)
    assert again.coordinator.ledger.moments.width == 4


@pytest.mark.parametrize("scheme", ["pace", "moment-match", "delayhet-submodular"])
@pytest.mark.parametrize("size", [1e38, 0.0])
def test_moments_of_any_size_stop_no_selection(flower, scheme, size):
    def lie(reply):
        moment = np.clip(np.frombuffer(reply.note.get("moment", b""), "<f4").astype(np.float64) * size, -3e38, 3e38)
        return dataclasses.replace(reply, note={**reply.note, "moment": moment.astype("<f4").tobytes()})

    grid = fleet(flower, {LIAR: [changed(lambda reply: lie(reply) if "moment" in reply.note else reply)]})
    strategy = PacedStrategy(FedAvg(), scheme, clock="reported", warmup="full", warmup_wait=1.0)
    record = flower.rounds(strategy, grid, flower.arrays([0.0]), 4)
    assert strategy.coordinator.step == 4
    assert np.isfinite(record["w0"].numpy()).all()


def test_other_classes_that_come_first_do_not_lock_the_others_out(flower):
    grid = flower.grid()
    for client, classes in enumerate((7, 3, 3)):
        mod = report_mod(labels=lambda context, classes=classes: [4] * classes, transfer=False)
        grid.add(100 + client, flower.app([mod]), name=CLIENTS[client])
    strategy = PacedStrategy(FEW, "fed-cbs", k=2, clock="reported", nodes_seconds=0)
    others = {node: grid.nodes.pop(node) for node in (101, 102)}
    record = flower.rounds(strategy, grid, flower.arrays([0.0]), 1)
    grid.nodes |= others
    flower.rounds(strategy, grid, record, 1, first=2)
    assert np.isfinite(strategy.coordinator.ledger.tables["labels"]).all(axis=1).tolist() == [False, True, True]


def test_wide_features_are_sketched_at_home(flower):
    rows = np.random.default_rng(0).normal(size=(20, 4000)).astype(np.float32)
    grid = flower.grid()
    for client in range(3):
        mod = report_mod(features=lambda message, context, client=client: rows + client, transfer=False)
        grid.add(100 + client, flower.app([mod]), name=CLIENTS[client])
    strategy = PacedStrategy(FedAvg(), "moment-match", clock="reported", warmup="full", warmup_wait=1.0)
    flower.rounds(strategy, grid, flower.arrays([0.0]), 2)
    assert strategy.coordinator.ledger.moments.width == 512
    assert strategy.coordinator.ledger.moments.known.all()


def test_a_name_has_one_holder_at_a_time(flower, caplog):
    grid = fleet(flower, {}, count=2)
    strategy = PacedStrategy(FedAvg(), "random", k=2, clock="reported")
    record = flower.rounds(strategy, grid, flower.arrays([0.0]), 1)
    grid.add(555, flower.app([report_mod(transfer=False)]), name=CLIENTS[0])
    with caplog.at_level(logging.WARNING, "flwr"):
        record = flower.rounds(strategy, grid, record, 1, first=2)
    assert "node 555 calls itself 'anna', but another node has this name" in caplog.text
    assert set(strategy.coordinator.clients) == {"anna", "bert", "node-555"}
    del grid.nodes[100]  # when the holder is gone, the name is free: a node that started again has another id
    flower.rounds(strategy, grid, record, 1, first=3)
    assert strategy._node_names.names([555, 101], grid) == {"anna": 555, "bert": 101}


def test_bound_names_stay_with_their_nodes(flower, tmp_path, caplog):
    grid = fleet(flower, {}, count=2)
    options = {"k": 2, "clock": "reported", "bind_names": True, "state": tmp_path}
    record = flower.rounds(PacedStrategy(FedAvg(), "random", **options), grid, flower.arrays([0.0]), 1)
    grid.nodes[555] = grid.nodes.pop(100)  # an impostor, while anna is away
    strategy = PacedStrategy(FedAvg(), "random", **options)
    with caplog.at_level(logging.WARNING, "flwr"):
        record = flower.rounds(strategy, grid, record, 1, first=2)
    assert "node 555 calls itself 'anna', but another node has this name" in caplog.text
    assert set(strategy.coordinator.clients) == {"anna", "bert", "node-555"}
    grid.nodes[100] = grid.nodes[555]
    flower.rounds(strategy, grid, record, 1, first=3)
    assert strategy._node_names.names([100, 555], grid) == {"anna": 100, "node-555": 555}


def test_the_roster_does_not_grow_with_reconnections(flower, monkeypatch):
    """Twenty nodes without a name come back behind other ids in each of 60 rounds; time passes faster than it does."""
    now = [0.0]
    monkeypatch.setattr(reply_loop, "monotonic", lambda: now[0])
    strategy = PacedStrategy(FEW, "random", k=5, clock="reported", forget_seconds=5000.0, nodes_seconds=0)
    grid, record = flower.grid(), flower.arrays([0.0])
    grid.add(1, flower.app([report_mod(transfer=False)]), name="named")
    record = flower.rounds(strategy, grid, record, 1)
    for number in range(2, 62):
        grid.nodes.clear()
        for node in range(20):
            grid.add(1000 * number + node, flower.app([report_mod(transfer=False)]))
        now[0] += 60.0
        record = flower.rounds(strategy, grid, record, 1, first=number)
        assert len(strategy.coordinator) <= 1 + 20 * 12
    assert "named" in strategy.coordinator.clients, "who has a name is remembered for longer"
    now[0] += 5000.0
    flower.rounds(strategy, grid, record, 1, first=62)
    assert "named" not in strategy.coordinator.clients


def test_two_servers_do_not_share_a_folder(flower, tmp_path):
    first = PacedStrategy(FedAvg(), "random", k=2, state=tmp_path)
    with pytest.raises(InputError, match=r"is in use by process \d+ on .*, since 20\d\d-"):
        PacedStrategy(FedAvg(), "random", k=2, state=tmp_path)
    first.close()
    PacedStrategy(FedAvg(), "random", k=2, state=tmp_path).close()


@pytest.mark.parametrize(
    "metrics",
    [
        {},
        {"num-examples": 0},
        {"num-examples": -4},
        {"num-examples": [1]},
        {"num-examples": 3, "more": 1.0},
        {"num-examples": 3, "eval_loss": math.nan},
        {"num-examples": math.inf, "eval_loss": 1.0},
    ],
)
def test_an_evaluation_that_cannot_be_averaged_stops_nobody(flower, metrics):
    def liar(message, context, call_next):
        reply = call_next(message, context)
        if message.metadata.message_type == "evaluate":
            reply.content["metrics"] = MetricRecord(metrics)
        return reply

    grid = fleet(flower, {LIAR: [liar]})
    strategy = PacedStrategy(FedAvg(), "random", k=2, clock="reported")
    messages = strategy.configure_evaluate(1, flower.arrays([0.0]), ConfigRecord(), grid)
    found = strategy.aggregate_evaluate(1, grid.send_and_receive(messages))
    assert all(math.isfinite(value) for value in found.values())
    if "eval_loss" not in metrics and "more" not in metrics:
        assert found["eval_loss"] == 0.5
    strategy.close()


def test_the_catalogue_has_what_it_says():
    assert len({attack.name for attack in CATALOGUE}) == len(CATALOGUE) > 40
