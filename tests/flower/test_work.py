"""Work on Flower: in the config of each task, honoured by the client, normalised by the server, refused without it."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedpace._base.errors import InputError
from fedpace.flower import PacedServer, PacedStrategy, local_steps, report_mod
from fedpace.server.fednova import Fednova

USUAL = 8


def app(number, seconds):
    """A client that moves each array by 1 per local step, and reports the steps that it made."""
    mods = [report_mod(delay=lambda message, context, measured: 1.0 + seconds * made[-1] / USUAL, transfer=False)]
    client, made = ClientApp(mods=mods), []

    @client.train()
    def train(message, context):
        steps = local_steps(message, USUAL)
        made.append(steps)
        arrays = {key: Array(array.numpy() + np.float32(steps)) for key, array in message.content["arrays"].items()}
        metrics = MetricRecord({"num-examples": 10, "train_loss": 0.5, "local-steps": steps})
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)

    return client


def grid_of(flower, nodes=4):
    grid = flower.grid()
    for number in range(nodes):
        grid.add(number + 2, app(number, 10.0 * (number + 1)), **{"partition-id": number})
    return grid


def tasks(grid):
    sent = [m for m in grid.sent if m.metadata.message_type == "train" and "arrays" in m.content]
    return [dict(message.content["config"].items()) for message in sent]


@pytest.mark.parametrize("known", [0, 40])
def test_slow_nodes_train_less(flower, known):
    grid = grid_of(flower)
    strategy = PacedStrategy(
        FedAvg(), "fedprox", k=4, accepts_work=True, local_steps=known, clock="reported", warmup_wait=1.0
    )
    flower.rounds(strategy, grid, flower.arrays(np.zeros(3)), 3)
    configs = tasks(grid)
    work = [config["work"] for config in configs]
    assert work[:4] == [1.0] * 4  # the warm-up
    assert min(work[4:8]) < 0.8
    assert max(work[4:8]) == 1.0
    if known:
        assert [config["local-steps"] for config in configs] == [max(1, round(amount * known)) for amount in work]
    else:
        assert all("local-steps" not in config for config in configs)


def test_fednova_is_normalised_by_the_steps_that_were_made(flower):
    """Every local step moves by 1, so normalised updates are equal, and the step is the mean number of steps."""
    grid = grid_of(flower)
    strategy = PacedStrategy(FedAvg(), "fednova", k=4, accepts_work=True, clock="reported", warmup_wait=1.0)
    assert isinstance(strategy._server.rule, Fednova)
    record = flower.rounds(strategy, grid, flower.arrays(np.zeros(3)), 2)
    steps = [max(1, round(config["work"] * USUAL)) for config in tasks(grid)]
    expected = np.mean(steps[:4]) + np.mean(steps[4:8])
    assert len(set(steps[4:8])) > 1
    np.testing.assert_allclose(next(iter(record.values())).numpy(), expected, rtol=1e-6)


def test_pace_async_sets_work(flower):
    grid = grid_of(flower, nodes=5)
    server = PacedServer("pace-async", work="adaptive", accepts_work=True, clock="reported")
    server.start(grid, flower.arrays(np.zeros(3)), 12)
    work = [config["work"] for config in tasks(grid)]
    assert work[:5] == [1.0] * 5  # nothing is known of the nodes yet
    assert set(work[-5:]) != {1.0}


@pytest.mark.parametrize("make", [PacedServer, lambda name, **options: PacedStrategy(FedAvg(), name, **options)])
def test_a_federation_that_trains_all_alike_is_told_at_its_start(make):
    with pytest.raises(InputError, match="fednova sets how much each client trains, but this host trains all"):
        make("fednova")


def test_schemes_without_work_send_none(flower, grid):
    flower.rounds(PacedStrategy(FedAvg(), "random", k=3, clock="reported"), grid, flower.arrays(np.zeros(7)), 1)
    assert all("work" not in config for config in tasks(grid))


def message(**config):
    return Message(RecordDict({"config": ConfigRecord(config)}), dst_node_id=1, message_type="train")


def test_local_steps_of_a_client(flower):
    assert local_steps(message(), 10) == 10
    assert local_steps(message(work=0.25), 10) == 2
    assert local_steps(message(work=0.001), 10) == 1
    assert local_steps(message(**{"work": 0.25, "local-steps": 7}), 10) == 7
    with pytest.raises(InputError, match="the work that the server asks for must be above 0"):
        local_steps(message(work=-1.0), 10)
    with pytest.raises(InputError, match="usual number of local steps"):
        local_steps(message(), 0)
