"""What the wrapper asks clients for beside a model: sketches, losses, gradients, label histograms."""

from __future__ import annotations

import logging

import numpy as np
from flower_fleet import NODES, mod, start
from flwr.serverapp.strategy import FedAvg

from fedpace.flower import PacedStrategy, report_mod


def test_schemes_that_compare_updates_get_sketches(flower, grid):
    strategy = PacedStrategy(
        FedAvg(),
        "optimal-client-sampling",
        k=3,
        norms="last",
        sketch=4,
        clock="reported",
        warmup="full",
        warmup_wait=1.0,
    )
    flower.rounds(strategy, grid, start(flower), 2)
    assert strategy.coordinator.view().updates.shape == (NODES, 4)


def test_losses_are_asked_for_by_evaluation(flower, grid):
    strategy = PacedStrategy(FedAvg(), "power-of-choice", k=2, clock="reported")
    flower.rounds(strategy, grid, start(flower), 2)
    assert any(message.metadata.message_type == "evaluate" for message in grid.sent)
    assert strategy.coordinator.step == 2


def test_a_client_without_the_mod_answers_a_gradient_probe_by_training(flower):
    """Its model comes back whole, and the sketch is made by the server: the same numbers."""
    sketches = []
    for mods in ([], [report_mod()]):
        grid = flower.grid()
        for client in range(4):
            grid.add(30 + client, flower.app(mods, target=1.0 + client), name=f"node-{30 + client}")
        strategy = PacedStrategy(FedAvg(), "optimal-client-sampling", k=2, sketch=4, clock="reported", warmup_wait=1.0)
        flower.rounds(strategy, grid, start(flower), 1)
        strategy.configure_train(2, start(flower), flower.config(), grid)
        asked = [message for message in grid.sent if "fedpace-gradient" in message.content["config"]]
        assert asked
        sketches.append(strategy.coordinator.view().updates)
    np.testing.assert_allclose(sketches[0], sketches[1], rtol=1e-6)
    assert sketches[0].shape == (4, 4)
    assert np.isfinite(sketches[0]).all()


def test_a_probe_leaves_the_round_as_it_is(flower, grid):
    """Who was asked and then chosen gets the message of the inner strategy, without the question."""
    strategy = PacedStrategy(FedAvg(), "optimal-client-sampling", k=3, clock="reported", warmup="full", warmup_wait=1.0)
    flower.rounds(strategy, grid, start(flower), 1)
    before = len(grid.sent)
    assert flower.rounds(strategy, grid, start(flower), 1, first=2) is not None
    asked = ["fedpace-gradient" in message.content["config"] for message in grid.sent[before:]]
    assert asked == [True] * NODES + [False] * (len(asked) - NODES)
    assert len(asked) > NODES


def test_nobody_answering_a_probe_stops_nothing(flower, caplog):
    grid = flower.grid()

    def silent(message, context, call_next):
        if "fedpace-gradient" in message.content.config_records.get("config", {}):
            raise RuntimeError("no time for this")
        return call_next(message, context)

    for client in range(4):
        grid.add(10 + client, flower.app([silent, mod(flower)]), **{"partition-id": client})
    strategy = PacedStrategy(FedAvg(), "folb", k=2, clock="reported")
    with caplog.at_level(logging.WARNING, "flwr"):
        flower.rounds(strategy, grid, start(flower), 2)
    assert "failed in this round: RuntimeError('no time for this')" in caplog.text
    assert strategy.coordinator.step == 2


def test_label_histograms_are_asked_for_where_a_scheme_needs_them(flower):
    def fleet(**options):
        grid = flower.grid()
        for client in range(4):
            app = flower.app([report_mod(labels=lambda context: [3, context.node_config["partition-id"]], **options)])
            grid.add(10 + client, app, **{"partition-id": client})
        return grid

    strategy = PacedStrategy(FedAvg(), "fed-cbs", k=2, clock="reported")
    flower.rounds(strategy, fleet(), start(flower), 1)
    np.testing.assert_array_equal(strategy.coordinator.view().labels, [[3, 0], [3, 1], [3, 2], [3, 3]])
    strategy = PacedStrategy(FedAvg(), "random", k=2, clock="reported")
    flower.rounds(strategy, fleet(), start(flower), 1)
    assert strategy.coordinator.view().labels is None  # nobody asked, so nothing left the clients
    strategy = PacedStrategy(FedAvg(), "random", k=2, clock="reported", shares="samples")
    flower.rounds(strategy, fleet(samples=lambda context: 10.0), start(flower), 1)
    np.testing.assert_allclose(strategy.coordinator.view().share, np.full(4, 0.25))
    assert strategy.coordinator.view().labels is None


def test_who_does_not_say_what_cannot_wait_is_left_out(flower, caplog):
    grid = flower.grid()
    for client in range(4):
        samples = None if client == 2 else lambda context: 5.0
        grid.add(10 + client, flower.app([report_mod(samples=samples)], examples=5), **{"partition-id": client})
    strategy = PacedStrategy(FedAvg(), "random", k=3, clock="reported", shares="samples")
    with caplog.at_level(logging.WARNING, "flwr"):
        flower.rounds(strategy, grid, start(flower), 2)
    assert set(strategy.coordinator.clients) == {"partition-0", "partition-1", "partition-3"}
    assert "'partition-2' is not used: it did not report its number of samples" in caplog.text
