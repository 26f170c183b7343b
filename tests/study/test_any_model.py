"""Models and code of researchers: buffers, tied weights, frozen parameters, integers, own losses, metrics and loops."""

import numpy as np
import pytest
import torch
from torch import nn

import fedpace
from fedpace._base.errors import InputError
from fedpace.models.custom import TrainReport
from fedpace.sim.rounds import Simulation
from fedpace.study import arguments

RNG = np.random.default_rng(0)
CENTRES = RNG.normal(size=(3, 6)) * 3


def federation(clients=6, samples=24):
    """Clients with three classes, of which each has two."""
    pairs = []
    for client in range(clients + 1):
        y = RNG.integers(0, 3, samples) if client == clients else (client + RNG.integers(0, 2, samples)) % 3
        pairs.append(((CENTRES[y] + RNG.normal(size=(samples, 6))).astype(np.float32), y))
    return {"clients": pairs[:-1], "test": pairs[-1]}


DATA = federation()
QUICK = {"schemes": ["random(k=3)", "pace-async"], "seeds": 1, "rounds": 6, "progress": False, "lr": 0.05}


def run(model, **options):
    return fedpace.compare(**DATA, model=model, **{**QUICK, **options})


def simulation(model, **functions):
    ground = arguments.ground(DATA["clients"], DATA["test"], None, model)
    ground = arguments.with_own(ground, arguments.Functions(**functions), "higher")
    delays = arguments.delay_model("lognormal")
    scheme, engine = fedpace.make_selector("pace-async"), arguments.engine_options("auto", ground.model)
    return Simulation(ground.data, ground.model, delays, scheme, engine=engine, seed=0)


def small():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


class Tied(nn.Module):
    """An autoencoder whose decoder is the transposed encoder, and a head."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(6, 4)
        self.again = nn.Linear(6, 4)
        self.again.weight = self.encode.weight
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.cat([self.encode(x), torch.tanh(self.again(x))], 1))


class Counting(nn.Module):
    """An integer buffer that counts batches, a mask that stays, a frozen layer, and a buffer that is not saved."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.head = nn.Linear(6, 3)
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.tensor([True, False, True, True, True, True]))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x):
        if self.training:
            self.batches += 1
        return self.head(self.frozen(x) * self.mask)


@pytest.mark.parametrize(
    "model", [Tied, Counting, lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))]
)
def test_any_model_learns(model):
    results = run(model, target=0.6)
    for record in results.records:
        assert record.rounds[-1].metric > max(0.5, record.rounds[0].metric)


def test_tied_weights_are_one_vector_and_stay_tied():
    played = simulation(Tied)
    assert played.trainer.trainable == 6 * 4 + 4 + 4 + 8 * 3 + 3, "the shared weight counts once"
    for _, _ in zip(range(3), played.rounds(), strict=False):
        pass
    named = played.trainer.named_tensors(played.parameters)
    assert torch.equal(named["encode.weight"], named["again.weight"])
    assert not torch.equal(
        named["encode.weight"], played.trainer.named_tensors(played.trainer.initial)["encode.weight"]
    )


def test_frozen_parameters_are_neither_sent_nor_remembered_nor_changed():
    played = simulation(Counting)
    assert played.trainer.trainable == 6 * 3 + 3
    before = played.trainer.named_tensors(played.trainer.initial)
    for _, _ in zip(range(4), played.rounds(), strict=False):
        pass
    after = played.trainer.named_tensors(played.parameters)
    assert torch.equal(before["frozen.weight"], after["frozen.weight"])
    assert not torch.equal(before["head.weight"], after["head.weight"])
    assert {row.size for row in played.aggregator.state.offsets.rows} == {6 * 3 + 3}


def test_integers_are_averaged_and_stay_integers():
    played = simulation(Counting)
    for _, _ in zip(range(4), played.rounds(), strict=False):
        pass
    after = played.trainer.named_tensors(played.parameters)
    assert after["batches"].dtype == torch.int64
    assert after["batches"] > 0
    assert after["mask"].dtype == torch.bool
    assert after["mask"].tolist() == [True, False, True, True, True, True]


# -- functions of one's own ----------------------------------------------------------------------------------


def adam(model, data, work):
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(work.epochs):
        for rows in data.batches(8, work.rng):
            optimiser.zero_grad()  # sets gradients to None
            loss = nn.functional.cross_entropy(model(data.inputs[rows]), data.targets[rows])
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    return TrainReport(float(np.mean(losses)), len(losses))


def error_rate(outputs, targets):
    return (outputs.argmax(1) != targets).float().mean()


def test_a_training_loop_of_ones_own_trains():
    for model in (small(), "mlp(hidden=8)"):
        results = run(model, train=adam)
        for record in results.records:
            assert record.rounds[-1].metric > 0.6
            assert record.info.experiment["model"]["train"] == "adam"


def test_the_loop_gets_the_module_the_data_and_the_work():
    seen = []

    def train(model, data, work):
        assert model.training
        seen.append((type(model), data.client, len(data), data.inputs.shape, work.epochs, work.part))
        return 1.0

    next(iter(islice_rounds(small(), train)))
    assert {each[0] for each in seen} == {nn.Sequential}
    assert {each[1] for each in seen} <= set(range(6))
    assert {each[2:] for each in seen} == {(24, torch.Size([24, 6]), 5, 1.0)}


def islice_rounds(model, train):
    rounds = fedpace.simulate(**DATA, model=model, selector="random(k=3)", train=train)
    next(rounds)
    return rounds


def test_a_loop_may_replace_parameters_and_gradients():
    """Such as one that loads an averaged copy at its end."""

    def train(model, data, work):
        for parameter in model.parameters():
            parameter.data = parameter.data + 1.0
            parameter.grad = None
        return 0.5

    played = simulation(small, train=train)
    result = played.trainer.train(played.trainer.initial, 0, 0)
    torch.testing.assert_close(result.parameters, played.trainer.initial + 1.0)
    again = played.trainer.train(played.trainer.initial, 1, 0)
    torch.testing.assert_close(again.parameters, played.trainer.initial + 1.0)
    assert played.trainer.gradient(played.trainer.initial, 0).abs().sum() > 0, "gradients are views again"


@pytest.mark.parametrize(
    ("came", "words"),
    [
        (None, "must return the training loss"),
        ("0.5", "must return the training loss"),
        ((1.0, 2.0), "must return the training loss"),
        (TrainReport(1.0, 0), "must report at least 1"),
        ({"loss": [1]}, "must return the training loss"),
    ],
)
def test_what_a_loop_returns_is_checked(came, words):
    with pytest.raises(InputError, match=words):
        next(islice_rounds(small(), lambda model, data, work: came))


@pytest.mark.parametrize("came", [0.5, torch.tensor(0.5), np.float32(0.5), {"loss": 0.5}, TrainReport(0.5)])
def test_a_loss_may_come_in_many_forms(came):
    assert next(islice_rounds(small(), lambda model, data, work: came)).train_loss == 0.5


def test_a_loop_that_diverges_is_named():
    with pytest.raises(fedpace.FedpaceError, match="diverged"):
        next(islice_rounds(small(), lambda model, data, work: float("nan")))


def test_a_metric_of_ones_own_judges_the_whole_test_data():
    sizes = []

    def counted(outputs, targets):
        sizes.append((len(outputs), len(targets)))
        return error_rate(outputs, targets)

    results = run(small(), metric=counted, better="lower", target=0.3)
    record = results.records[0]
    assert record.info.metric == "counted"
    assert record.info.direction == "down"
    assert (24, 24) in sizes
    assert record.rounds[-1].metric < record.rounds[0].metric
    accuracy = run(small()).records[0]
    assert "counted" in str(results)
    assert accuracy.info.metric == "accuracy"


def test_a_metric_is_the_same_as_the_builtin_one():
    def accuracy(outputs, targets):
        return (outputs.argmax(1) == targets).float().mean()

    one, two = (run(small, **options).records for options in ({}, {"metric": accuracy}))
    for usual, own in zip(one, two, strict=True):
        assert [each.metric for each in own.rounds] == pytest.approx([each.metric for each in usual.rounds], abs=0.05)


def test_a_loss_of_ones_own_is_trained():
    def shouted(outputs, targets):
        return 10 * nn.functional.cross_entropy(outputs, targets)

    net = small()
    usual, loud = (run(net, schemes="random(k=3)", **options).records[0] for options in ({}, {"loss": shouted}))
    assert loud.rounds[0].loss == pytest.approx(10 * usual.rounds[0].loss, rel=1e-5)
    assert loud.rounds[1].train_loss != usual.rounds[1].train_loss


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"metric": "f1"}, "metric must be a function"),
        ({"train": 3}, "train must be a function"),
        ({"metric": lambda outputs, targets: None}, "must return a number"),
        ({"metric": lambda outputs, targets: float("nan")}, "finite number"),
        ({"loss": lambda outputs, targets: outputs}, "tensor of one number"),
        ({"metric": error_rate, "better": "more"}, "better"),
        ({"train": adam, "engine": "processes"}, "called in this process"),
        ({"train": adam, "lr": None, "training": fedpace.Training(algorithm="fedprox")}, "leave algorithm out"),
    ],
)
def test_mistakes_are_named(options, words):
    with pytest.raises(InputError, match=words):
        run(small(), **options)
