"""One trace of delays, losses and moments: the simulator's Session and the Flower strategy choose alike."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

import fedpace
from fedpace import Outcome
from fedpace.flower import PacedStrategy, report_mod
from fedpace.flower.wire import pack_moment, unpack_moment
from fedpace.moments import factor_from_features

CLIENTS = 12
ROUNDS = 8


def trace(step, client):
    """Seconds and loss of a client in a round."""
    rng = fedpace.stream(3, "trace", step, client)
    return float(rng.lognormal(2.0, 1.0)), float(rng.uniform(0.2, 2.0))


def on_the_session(selector, warmup, moment):
    """Drive the session as the simulator does."""
    session = fedpace.Session(selector, seed=5, warmup=warmup)
    session.join([f"partition-{client}" for client in range(CLIENTS)])
    chosen, now = [], 0.0
    for number in range(1, ROUNDS + 1):
        if session.probe(now=now) is not None:
            request = session.pending_probe
            session.answer({name: trace(number, int(name.split("-")[1]))[1] for name in request.clients})
        selection = session.select(now=now)
        outcomes = []
        for name in selection.clients:
            seconds, loss = trace(number, int(name.split("-")[1]))
            outcomes.append(Outcome(name, seconds=seconds, loss=loss, samples=10.0, moment=moment(name)))
        now += max(outcome.seconds for outcome in outcomes)
        session.observe(outcomes, now=now)
        chosen.append((selection.clients, selection.weights.tolist(), selection.mode))
    return chosen


def on_flower(flower, selector, warmup):
    """The same clients behind a Grid, with the mod stamping the trace."""
    grid = flower.grid()
    number = {"round": 0}
    for client in range(CLIENTS):

        def delay(message, context, measured):
            return trace(message.content["config"]["server-round"], context.node_config["partition-id"])[0]

        def features(message, context):
            return flower.rows(context.node_config["partition-id"])

        def loss(message, client=client):
            return trace(number["round"], client)[1]

        app = flower.app([report_mod(features=features, delay=delay)], loss=loss)
        grid.add(1000 + 7 * client, app, **{"partition-id": client})
    strategy = PacedStrategy(FedAvg(), selector, seed=5, warmup=warmup, clock="reported")
    chosen = []
    record = flower.arrays([1.0, 2.0])
    for step in range(1, ROUNDS + 1):
        number["round"] = step
        messages = strategy.configure_train(step, record, flower.config(), grid)
        selection = strategy.session.pending
        chosen.append((selection.clients, selection.weights.tolist(), selection.mode))
        strategy.aggregate_train(step, grid.send_and_receive(messages))
    return chosen


@pytest.mark.parametrize("warmup", ["lazy", "full"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("delayhet-submodular", {}),
        ("delayhet-sampling", {"k": 4}),
        ("random", {"k": 4}),
        ("random", {"k": 4, "variant": "uniform-unbiased"}),
        ("power-of-choice", {"k": 3}),
    ],
)
def test_both_hosts_choose_alike(flower, name, options, warmup):
    selector = fedpace.make_selector(name, **options)

    def moment(client):
        # What leaves a client is in single precision.
        factor = factor_from_features(flower.rows(int(client.split("-")[1])), max_rank=16)
        return unpack_moment(pack_moment(factor))

    expected = on_the_session(selector, warmup, moment)
    assert on_flower(flower, selector, warmup) == expected
    assert len({clients for clients, _, _ in expected}) > 1  # a trace that tells schemes' choices apart
    assert all(math.isclose(sum(weights), 1) or mode == "delta" for _, weights, mode in expected)


def test_a_moment_survives_the_journey(flower):
    factor = factor_from_features(flower.rows(1))
    np.testing.assert_allclose(unpack_moment(pack_moment(factor)), factor, rtol=1e-6)
