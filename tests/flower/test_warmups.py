"""How the wrapper meets nodes: warm-ups that wait for all or some, beside rounds, and across restarts."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
from flower_fleet import NODES, as_numpy, fleet, mod, start
from flwr.app import Error, Message
from flwr.serverapp.strategy import FedAdam, FedAvg

from fedpace import Settings
from fedpace._base.errors import InputError
from fedpace.flower import PacedServer, PacedStrategy, report_mod
from fedpace.hosting.live_server import LIVE_DEFAULTS
from fedpace.records.run import read_run


def test_pace_is_what_chooses_unless_told_otherwise(flower, grid, caplog):
    strategy = PacedStrategy(FedAvg(), clock="reported", warmup="full", warmup_wait=1.0)
    flower.rounds(strategy, grid, start(flower), 3)
    assert strategy.coordinator.policy.name == "pace"
    asked = [m.content["config"].get("fedpace-moment") for m in grid.sent if "arrays" in m.content]
    assert asked[:NODES] == [True] * NODES
    assert not any(asked[NODES:])  # one moment a client: those of different models cannot be compared
    assert strategy.coordinator.view().updates is not None


def test_pace_without_moments_goes_on_and_says_what_lacks(flower, caplog):
    grid = flower.grid()
    for client in range(6):
        grid.add(20 + client, flower.app([report_mod()]), **{"partition-id": client})
    strategy = PacedStrategy(FedAvg(), warmup="lazy", warmup_quota=3)
    record = start(flower)
    with caplog.at_level(logging.INFO, "flwr"):
        assert flower.rounds(strategy, grid, record, 2) is not record
    assert "pace needs feature moments, 'partition-" in caplog.text
    assert "add report_mod(module=...)" in caplog.text
    assert "pace knows too little of every client" in caplog.text
    assert len(grid.trained()) == 6


def test_a_warmup_that_waits_for_half_goes_on_with_it(flower):
    """Time is what clients report: node i takes 10 i seconds, and a round that ends after that knows it."""
    grid = flower.grid()
    for client in range(6):
        apps = [report_mod(features=lambda m, c: flower.rows(c.node_config["partition-id"]), delay=slow)]
        grid.add(30 + client, flower.app(apps, target=1.0 + client), **{"partition-id": client})
    strategy = PacedStrategy(FedAvg(), "moment-match", warmup="full", warmup_wait=0.5, clock="reported")
    record = start(flower)
    flower.rounds(strategy, grid, record, 1)
    assert strategy.coordinator.now == 30.0
    known = strategy.coordinator.view().available.sum()
    assert known == 3
    for number in range(2, 9):
        before = strategy.coordinator.now
        record = flower.rounds(strategy, grid, record, 1, first=number)
        assert strategy.coordinator.view().available.sum() == min(6, before // 10)
    assert strategy.coordinator.view().available.all()
    assert not strategy.coordinator.tasks


def slow(message, context, measured):
    return 10.0 * (1 + context.node_config["partition-id"])


def test_late_answers_to_a_warmup_are_fetched_when_they_come(flower):
    """On the server's clock: two replies are held back; one node is gone for good, as the SuperLink says later."""
    grid = flower.grid()
    for client in range(4):
        apps = [report_mod(features=lambda m, c: flower.rows(c.node_config["partition-id"]))]
        grid.add(40 + client, flower.app(apps, target=1.0 + client), **{"partition-id": client})
    held, pull = {42, 43}, grid.pull_messages

    def asked():
        return {m.metadata.dst_node_id: m for m in grid.sent if "arrays" in m.content}

    def slow_pull(message_ids):
        wanted = {message.metadata.message_id for node, message in asked().items() if node in held}
        return pull([identifier for identifier in message_ids if identifier not in wanted])

    grid.pull_messages = slow_pull
    strategy = PacedStrategy(FedAvg(), "moment-match", warmup="full", warmup_wait=0.5, name_seconds=5.0)
    record = start(flower)
    first = as_numpy(flower.rounds(strategy, grid, record, 1))
    for key, before in as_numpy(record).items():
        np.testing.assert_allclose(first[key], before + 0.3 * (1.5 - before), rtol=1e-5)  # of those that answered
    for number in (2, 3):
        flower.rounds(strategy, grid, record, 1, first=number)
        assert strategy.coordinator.view().available.tolist() == [True, True, False, False]
    late = asked()[43]
    grid._replies[late.metadata.message_id] = Message(Error(code=5, reason="node unavailable"), reply_to=late)
    held.clear()
    flower.rounds(strategy, grid, record, 1, first=4)
    assert strategy.coordinator.view().available.tolist()[2]
    assert strategy.coordinator.ledger.columns["failures"].tolist()[3] == 1, "and is met as a newcomer again"


def test_a_restarted_server_asks_those_that_were_awaited_anew(flower, tmp_path):
    """On the server's clock: what nodes answer to a server that is gone, nobody hears."""
    grid = flower.grid()
    for client in range(4):
        apps = [report_mod(features=lambda m, c: flower.rows(c.node_config["partition-id"]))]
        grid.add(50 + client, flower.app(apps), **{"partition-id": client})

    def strategy():
        options = {"warmup": "full", "warmup_wait": 0.5, "state": tmp_path / "state"}
        return PacedStrategy(FedAvg(), "moment-match", **options)

    record, pull = start(flower), grid.pull_messages
    late = {52, 53}

    def slow_pull(message_ids):
        models = {m.metadata.message_id for m in grid.sent if "arrays" in m.content and m.metadata.dst_node_id in late}
        return pull([identifier for identifier in message_ids if identifier not in models])

    grid.pull_messages = slow_pull
    flower.rounds(strategy(), grid, record, 1)
    grid.pull_messages = pull
    entry = read_run(tmp_path / "state").rounds[-1]
    assert (entry.failed, entry.clients) == ((), ("partition-0", "partition-1"))
    assert entry.warmed == ("partition-2", "partition-3"), "they only report, when they come"
    flower.rounds(strategy(), grid, record, 1)
    assert grid.trained()[4:6] == [52, 53], "those two, before anything else"
    assert read_run(tmp_path / "state").rounds[-1].warmed == ("partition-2", "partition-3")
    with pytest.raises(InputError, match="warmup_wait"):
        PacedStrategy(FedAvg(), "moment-match", warmup="full", warmup_wait=1.0, state=tmp_path / "state")


@pytest.mark.parametrize("options", [{"warmup": "lazy", "warmup_quota": 2}, {"warmup": "full", "warmup_wait": 0.5}])
def test_on_the_reported_clock_what_came_to_a_server_outlives_it(flower, tmp_path, options):
    """Restarted after every round: who was met beside the rounds is heard when its seconds have passed, as ever."""

    def rounds(folder, sittings):
        model = start(flower)
        for number in range(sittings):
            grid = flower.grid()
            for client in range(6):
                apps = [report_mod(features=lambda m, c: flower.rows(c.node_config["partition-id"]), delay=slow)]
                grid.add(50 + client, flower.app(apps, target=1.0 + client), **{"partition-id": client})
            strategy = PacedStrategy(FedAvg(), "moment-match", clock="reported", state=folder, seed=3, **options)
            model = flower.rounds(strategy, grid, model, 8 // sittings, first=1 + number)
        return (folder / "rounds.jsonl").read_bytes(), as_numpy(model)

    whole, model = rounds(tmp_path / "whole", 1)
    parts, again = rounds(tmp_path / "parts", 8)
    assert any(entry.heard for entry in read_run(tmp_path / "whole").rounds), "somebody is heard in a later round"
    assert parts == whole
    for key, array in model.items():
        np.testing.assert_array_equal(again[key], array)


def test_a_full_warmup_may_leave_the_model_as_it_is(flower, grid):
    """Ten clients only report; the inner strategy sees those that the scheme then chooses."""
    seen = []

    class Watching(FedAvg):
        def aggregate_train(self, server_round, replies):
            seen.extend(reply.metadata.src_node_id for reply in replies)
            return super().aggregate_train(server_round, replies)

    options = {"warmup": "full", "warmup_wait": 1.0, "warmup_trains": False, "clock": "reported", "k": 3}
    strategy = PacedStrategy(Watching(), "delayhet-sampling", **options)
    assert flower.rounds(strategy, grid, start(flower), 1) is not None
    assert sorted(grid.trained()[:NODES]) == sorted(grid.nodes)
    assert sorted(grid.trained()[NODES:]) == sorted(seen)
    assert 1 <= len(seen) <= 3  # drawn with replacement
    assert strategy.coordinator.step == 1


def test_a_full_warmup_is_the_first_round(flower, grid):
    strategy = PacedStrategy(FedAdam(eta=0.1), "delayhet-submodular", warmup="full", warmup_wait=1.0, clock="reported")
    result = as_numpy(flower.rounds(strategy, grid, start(flower), 1))
    assert len(grid.trained()) == NODES
    for key, expected in as_numpy(flower.rounds(FedAdam(eta=0.1), grid, start(flower), 1)).items():
        np.testing.assert_allclose(result[key], expected, rtol=1e-5)


def test_a_lazy_warmup_meets_a_quota_a_round(flower, grid):
    strategy = PacedStrategy(FedAvg(), "delayhet-submodular", warmup="lazy", warmup_quota=3, clock="reported")
    flower.rounds(strategy, grid, start(flower), 1)
    assert len(grid.trained()) == 3
    flower.rounds(strategy, grid, start(flower), 6, first=2)
    assert set(grid.trained()) == set(grid.nodes)


def test_every_host_meets_clients_in_the_same_way(flower):
    """The first round trains everybody, and ends when half of them have answered."""
    settings = [
        PacedStrategy(FedAvg(), "random", k=2).coordinator.settings,
        PacedServer("fedbuff").coordinator.settings,
    ]
    assert settings == [LIVE_DEFAULTS, LIVE_DEFAULTS]
    given = Settings(seed=3, warmup="lazy")
    kept = PacedStrategy(FedAvg(), "random", k=2, settings=given, deadline=9.0).coordinator.settings
    assert kept == replace(given, deadline=9.0, hear_late=True)
    with pytest.raises(InputError, match=r"settings must be a fedpace\.Settings"):
        PacedServer("fedbuff", settings=3)
    with pytest.raises(InputError, match="Did you mean 'warmup_wait'"):
        PacedServer("fedbuff", warmup_wai=0.5)


@pytest.mark.parametrize("late", [0, 10])
@pytest.mark.parametrize("memory", [0.0, 1.0])
def test_pace_reaches_the_mean_of_thirty_nodes(flower, late, memory):
    """Node i pulls towards i, and takes i seconds; moments say nothing about that. 1.0 GiB of memory is the default.

    Without memory, a lazy warm-up gets to 1.5 of 15.5 in these 40 rounds.
    """
    grid = fleet(flower, 30 - late)
    strategy = PacedStrategy(FedAvg(), clock="reported", memory_gib=memory)
    record = flower.rounds(strategy, grid, start(flower), 10)
    for client in range(30 - late, 30):
        grid.add(100 + client, flower.app([mod(flower)], target=1.0 + client), **{"partition-id": client})
    record = flower.rounds(strategy, grid, record, 30, first=11)
    np.testing.assert_allclose(as_numpy(record)["w0"], 15.5, rtol=0.1)
