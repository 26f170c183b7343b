"""A real simulation and the Flower strategy, on one trace of delays, data and training, choose alike."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import fedpace
from fedpace._base import registry
from fedpace.flower import PacedServer, PacedStrategy, report_mod
from fedpace.hosting.replies import pack_moment, read_note
from fedpace.moments import factor_from_features
from fedpace.sim.clock import Clock
from fedpace.sim.rounds import Fleet, Simulation
from fedpace.sim.training import Training

CLIENTS = 12
ROUNDS = 8
SEED = 5


def simulation(scheme, settings, *, deadline=math.inf):
    made = Simulation(
        registry.datasets.make("digits", clients=CLIENTS, alpha=0.5),
        registry.models.make("linear"),
        registry.delays.make("lognormal"),
        scheme,
        training=Training(epochs=1, lr=0.05, sketch=16, moment_samples=1000),
        fleet=Fleet(delays="observed", **settings),
        clock=Clock(charge_warmup=True, deadline=deadline),
        seed=SEED,
    )
    made.coordinator.settings = replace(made.coordinator.settings, hear_late=True)  # as where nobody can be stopped
    return made


def client_app(twin):
    """A ClientApp whose clients are the simulated ones: the same data, training and delays."""
    trainer, engine = twin.trainer, twin.engine
    in_rounds, jobs = twin.coordinator.policy.rounds, Counter()

    def model(message):
        return torch.from_numpy(message.content["arrays"]["w"].numpy().copy())

    def step(message):
        return int(message.content["config"]["server-round"]) - 1

    def batch(message, context):
        """The rows of which the simulator makes its moment."""
        return rows_of(trainer, context.node_config["partition-id"])

    def gradient(message, context):
        (found,) = engine.gradients(model(message), [context.node_config["partition-id"]])
        return {"w": -trainer.training.lr * found.double().numpy()}

    def delay(message, context, measured):
        client = context.node_config["partition-id"]
        if not in_rounds:
            return twin.time.client_draw(client, jobs[client])[0]
        return float(twin.time.delays_at(step(message) + 1)[client])

    def labels(context):
        return trainer.data.label_histograms()[context.node_config["partition-id"]]

    app = ClientApp(mods=[report_mod(features=batch, gradient=gradient, labels=labels, delay=delay, max_rank=1000)])

    @app.train()
    def train(message, context):
        client = context.node_config["partition-id"]
        (result,) = engine.train(model(message), [client], step(message) if in_rounds else jobs[client])
        jobs[client] += 1
        arrays = ArrayRecord({"w": Array(result.parameters.numpy())})
        metrics = MetricRecord({"train_loss": result.loss, "num-examples": trainer.counts[client]})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        (loss,) = engine.local_losses(model(message), [context.node_config["partition-id"]], samples=0, step=0)
        return Message(RecordDict({"metrics": MetricRecord({"loss": loss, "num-examples": 1})}), reply_to=message)

    return app


def rows_of(trainer, client):
    """Features and one-hot labels: those of a linear model do not depend on its parameters, and it has no bias."""
    samples = trainer.data.train[client]
    inputs = samples.inputs.reshape(len(samples.targets), -1).astype(np.float64)
    return inputs, np.eye(trainer.data.classes)[samples.targets]


def on_flower(flower, scheme, settings, *, deadline=math.inf, rounds=ROUNDS, without_rounds=False):
    twin = simulation(scheme, settings)
    grid, app = flower.grid(), client_app(twin)
    for client in range(CLIENTS):
        grid.add(1000 + 7 * client, app, **{"partition-id": client})
    how = {"seed": SEED, "clock": "reported", "deadline": deadline, "moments_every": 0, "sketch": 16, **settings}
    own = without_rounds or not twin.coordinator.policy.rounds
    strategy = PacedServer(scheme, **how) if own else PacedStrategy(FedAvg(), scheme, **how)
    entries = []
    stepped = strategy._server.stepped
    strategy._server.stepped = lambda *args, **named: entries.append(stepped(*args, **named)) or entries[-1]
    initial = ArrayRecord({"w": Array(twin.trainer.initial.numpy())})
    if own:
        strategy.start(grid, initial, rounds)
    else:
        flower.rounds(strategy, grid, initial, rounds)
    return entries


def assert_alike(simulated, on_flower):
    def named(rows):
        return tuple(f"partition-{row}" for row in rows)

    for expected, entry in zip(simulated, on_flower, strict=True):
        assert entry.clients == named(expected.clients), f"round {expected.number}"
        assert entry.failed == named(expected.failed)
        assert entry.warmed == named(expected.warmed)
        assert entry.heard == named(expected.heard)
        assert entry.probed == named(expected.probed)
        assert (entry.mode, entry.status) == (expected.mode, expected.status)
        np.testing.assert_allclose(entry.weights, expected.weights, rtol=1e-3, atol=1e-6)
        assert entry.clock == pytest.approx(expected.clock, rel=1e-9)
        assert entry.train_loss == pytest.approx(expected.train_loss, rel=1e-3)


CASES = [
    ("pace", {}, {"warmup": "full", "warmup_wait": 1.0}),
    ("pace", {}, {"warmup": "full", "warmup_wait": 0.5}),
    ("delayhet-submodular", {}, {"warmup": "full", "warmup_wait": 1.0}),
    ("delayhet-submodular", {}, {"warmup": "lazy"}),
    ("delayhet-sampling", {"k": 4}, {"warmup": "full", "warmup_wait": 0.4}),
    ("delayhet-sampling", {"k": 4}, {"warmup": "lazy", "warmup_quota": 3, "shares": "samples"}),
    ("moment-match", {}, {"warmup": "lazy", "warmup_quota": 4}),
    ("random", {"k": 4}, {"warmup": "full", "warmup_wait": 1.0}),
    ("random", {"k": 4, "variant": "uniform-unbiased"}, {"warmup": "lazy", "shares": "samples"}),
    ("flanp", {}, {"warmup": "lazy"}),
    ("oort", {"k": 3}, {"warmup": "full", "warmup_wait": 1.0}),
    ("power-of-choice", {"k": 3}, {"warmup": "full", "warmup_wait": 1.0}),
    ("folb", {"k": 3}, {"warmup": "full", "warmup_wait": 1.0}),
    ("divfl", {"k": 3}, {"warmup": "full", "warmup_wait": 1.0}),
    ("optimal-client-sampling", {"k": 3}, {"warmup": "full", "warmup_wait": 1.0}),
    ("fed-cbs", {"k": 3}, {"warmup": "full", "warmup_wait": 1.0}),
]


@pytest.mark.parametrize(("name", "options", "settings"), CASES, ids=lambda value: str(value))
def test_both_hosts_choose_alike(flower, name, options, settings):
    scheme = fedpace.make_selector(name, **options)
    simulated = list(islice(simulation(scheme, settings).rounds(), 1, ROUNDS + 1))
    assert len({entry.clients for entry in simulated}) > 1  # a trace that tells choices apart
    assert_alike(simulated, on_flower(flower, scheme, settings))


ASYNCHRONOUS = [
    ("fedbuff", {"buffer": 3}),
    ("fedbuff", {"buffer": 4, "in_flight": 6, "lr": 0.7, "momentum": 0.3}),
    ("pace-async", {}),
    ("pace-async", {"in_flight": 5}),
    ("refl", {"k": 4}),
]


@pytest.mark.parametrize(("name", "options"), ASYNCHRONOUS, ids=lambda value: str(value))
def test_both_hosts_do_without_rounds_alike(flower, name, options):
    """Who starts, when the model steps, what stale answers weigh, and what the server step remembers of clients."""
    scheme, steps = fedpace.make_selector(name, **options), 2 * ROUNDS
    simulated = list(islice(simulation(scheme, {}).rounds(), 1, steps + 1))
    assert name != "refl" or any(entry.facts["late"] for entry in simulated), "late answers are in its steps"
    found = on_flower(flower, scheme, {}, rounds=steps)
    assert_alike(simulated, found)
    for expected, entry in zip(simulated, found, strict=True):
        assert entry.work == pytest.approx(expected.work, rel=1e-9)
        numbers = {name: value for name, value in expected.facts.items() if name != "reasons"}
        assert {name: entry.facts[name] for name in numbers} == pytest.approx(numbers, rel=1e-3)
        assert (entry.step_factor, entry.carried) == pytest.approx((expected.step_factor, expected.carried), rel=1e-3)


def test_rounds_of_the_server_without_a_strategy(flower):
    """The same loop, with a scheme that works in rounds and fedpace's own step."""
    scheme, settings = fedpace.make_selector("pace"), {"warmup": "full", "warmup_wait": 1.0}
    simulated = list(islice(simulation(scheme, settings).rounds(), 1, ROUNDS + 1))
    assert_alike(simulated, on_flower(flower, scheme, settings, without_rounds=True))


def test_both_hosts_are_late_alike(flower):
    """A deadline that some clients miss: they go on, are asked nothing until they answer, and are heard then."""
    scheme, settings = fedpace.make_selector("random", k=6), {"warmup": "lazy"}
    deadline = float(np.median(simulation(scheme, settings).expected_delays))
    simulated = list(islice(simulation(scheme, settings, deadline=deadline).rounds(), 1, ROUNDS + 1))
    assert any(entry.failed for entry in simulated)
    assert any(entry.heard for entry in simulated)
    assert_alike(simulated, on_flower(flower, scheme, settings, deadline=deadline))


def test_a_moment_survives_the_journey(flower):
    factor = factor_from_features(flower.rows(1))
    np.testing.assert_allclose(read_note(pack_moment(factor)).moment, factor, rtol=1e-6)
