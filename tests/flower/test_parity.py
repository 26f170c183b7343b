"""One trace of delays, losses and moments: the simulator's Session and the Flower strategy choose alike."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

import fedpace
from fedpace import Outcome
from fedpace.core.types import Need, facts_wanted
from fedpace.core.waiting import round_end
from fedpace.flower import PacedStrategy, report_mod
from fedpace.hosting.notes import pack_moment, unpack_moment
from fedpace.moments import factor_from_features

CLIENTS = 12
ROUNDS = 8


def trace(step, client):
    """Seconds and loss of a client in a round."""
    rng = fedpace.stream(3, "trace", step, client)
    return float(rng.lognormal(2.0, 1.0)), float(rng.uniform(0.2, 2.0))


def gradient(step, client):
    """One step of a client from the model of a round."""
    return {"w0": fedpace.stream(3, "gradient", step, client).normal(size=2)}


def update(client):
    """What training makes of the model [1, 2], which stays as it is."""
    start = np.array([1.0, 2.0], np.float32)
    return (start + np.float32(0.3) * (np.float32(1.0 + client) - start)).astype(np.float64) - start


def labels(client):
    """How many samples of each class a client holds."""
    return fedpace.stream(3, "labels", client).integers(1, 9, size=4).astype(float)


def on_the_session(selector, moment, **settings):
    """Drive the session as the simulator does."""
    session = fedpace.Session(selector, seed=5, **settings)
    histograms = [labels(client) for client in range(CLIENTS)]
    samples = [histogram.sum() for histogram in histograms]
    session.join([f"partition-{client}" for client in range(CLIENTS)], samples=samples, labels=histograms)
    chosen, now = [], 0.0
    for number in range(1, ROUNDS + 1):
        if session.probe(now=now) is not None:
            request = session.pending_probe
            asked = {name: int(name.split("-")[1]) for name in request.clients}
            if request.kind == "loss":
                session.answer({name: trace(number, client)[1] for name, client in asked.items()})
            else:
                session.answer({name: gradient(number, client)["w0"] for name, client in asked.items()})
        selection = session.select(now=now)
        outcomes = []
        for name in selection.clients:
            client = int(name.split("-")[1])
            seconds, loss = trace(number, client)
            facts = {"samples": samples[client], "moment": moment(name)}
            if Need.UPDATE in facts_wanted(selector):
                facts["update"] = update(client)
            outcomes.append(Outcome(name, seconds=seconds, loss=loss, **facts))
        end = round_end(np.array([outcome.seconds for outcome in outcomes]), selection.deadline)
        told = [o if o.seconds <= end else Outcome(o.client, seconds=end, finished=False) for o in outcomes]
        now += end
        session.observe(told, now=now)
        chosen.append((selection.clients, selection.weights.tolist(), selection.mode))
    return chosen


def on_flower(flower, selector, *, rows, **settings):
    """The same clients behind a Grid, with the mod stamping the trace."""
    grid = flower.grid()
    number = {"round": 0}
    for client in range(CLIENTS):

        def delay(message, context, measured):
            return trace(message.content["config"]["server-round"], context.node_config["partition-id"])[0]

        def loss(message, client=client):
            return trace(number["round"], client)[1]

        mod = report_mod(
            features=lambda message, context: rows(context.node_config["partition-id"]),
            gradient=lambda message, context: gradient(number["round"], context.node_config["partition-id"]),
            labels=lambda context: labels(context.node_config["partition-id"]),
            delay=delay,
        )
        app = flower.app([mod], target=1.0 + client, loss=loss, examples=int(labels(client).sum()))
        grid.add(1000 + 7 * client, app, **{"partition-id": client})
    strategy = PacedStrategy(FedAvg(), selector, seed=5, clock="reported", **settings)
    chosen = []
    record = flower.arrays([1.0, 2.0])
    for step in range(1, ROUNDS + 1):
        number["round"] = step
        messages = strategy.configure_train(step, record, flower.config(), grid)
        selection = strategy.session.pending
        chosen.append((selection.clients, selection.weights.tolist(), selection.mode))
        strategy.aggregate_train(step, grid.send_and_receive(messages))
    return chosen


def one_hot(client):
    return np.eye(3)[np.arange(12) % (1 + client % 3)]


@pytest.mark.parametrize("warmup", ["lazy", "full"])
@pytest.mark.parametrize(
    ("name", "options", "settings"),
    [
        ("delayhet-submodular", {}, {}),
        ("delayhet-sampling", {"k": 4}, {}),
        ("delayhet-sampling", {"k": 4}, {"shares": "samples"}),
        ("random", {"k": 4}, {}),
        ("random", {"k": 4}, {"shares": "samples"}),
        ("random", {"k": 4, "variant": "uniform-unbiased"}, {}),
        ("power-of-choice", {"k": 3}, {}),
        ("folb", {"k": 3}, {}),
        ("divfl", {"k": 3}, {}),
        ("divfl", {"k": 3, "mode": "exact"}, {}),
        ("optimal-client-sampling", {"k": 3}, {}),
        ("fed-cbs", {"k": 3}, {}),
    ],
)
def test_both_hosts_choose_alike(flower, name, options, settings, warmup):
    selector = fedpace.make_selector(name, **options)
    wanted = facts_wanted(selector)

    def moment(client):
        # What leaves a client is in single precision.
        return unpack_moment(pack_moment(factor_from_features(flower.rows(int(client.split("-")[1])), max_rank=16)))

    expected = on_the_session(
        selector, moment if Need.MOMENT in wanted else lambda client: None, warmup=warmup, **settings
    )
    assert on_flower(flower, selector, rows=flower.rows, warmup=warmup, **settings) == expected
    assert len({clients for clients, _, _ in expected}) > 1  # a trace that tells schemes' choices apart
    assert all(math.isclose(sum(weights), 1) or mode == "delta" for _, weights, mode in expected)


@pytest.mark.parametrize("warmup", ["lazy", "full"])
def test_pace_matches_features_and_targets_together(flower, warmup):
    def moment(client):
        number = int(client.split("-")[1])
        factor = factor_from_features(flower.rows(number), labels=one_hot(number), max_rank=16)
        assert factor.shape[1] == 7
        return unpack_moment(pack_moment(factor))

    pace = fedpace.make_selector("pace")
    expected = on_the_session(pace, moment, warmup=warmup)
    both = on_flower(flower, pace, rows=lambda n: (flower.rows(n), one_hot(n)), warmup=warmup)
    assert both == expected
    assert len({clients for clients, _, _ in expected}) > 1
    features_alone = on_flower(flower, pace, rows=flower.rows, warmup=warmup)
    assert features_alone != expected  # it goes on with what there is, and the targets mattered


def test_a_moment_survives_the_journey(flower):
    factor = factor_from_features(flower.rows(1))
    np.testing.assert_allclose(unpack_moment(pack_moment(factor)), factor, rtol=1e-6)
