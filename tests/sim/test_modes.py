"""Training and evaluation mode, and what becomes of buffers: with models that differ between the two."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import fedpace
from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.data.federated import FederatedData, Samples
from fedpace.delays.constant import ConstantDelays
from fedpace.models.contract import FeatureModel, linear_layer
from fedpace.sim.engines.engine import EngineOptions
from fedpace.sim.flat import FlatModel, mean_buffers
from fedpace.sim.rounds import Simulation
from fedpace.sim.torch_trainer import TorchTrainer, Training

COUNTS = (33, 12, 9)


@dataclass(frozen=True)
class Toy:
    name: ClassVar[str] = "toy"
    metric: ClassVar[str] = "accuracy"

    def build(self, *, seed):
        rng = stream(seed, "modes")

        def draw(count):
            inputs = rng.normal(3.0, 2.0, size=(count, 5)).astype(np.float32)
            return Samples(inputs, (inputs[:, 0] > 3).astype(np.int64))

        return FederatedData("toy", tuple(draw(c) for c in COUNTS), draw(40), classes=2, metric="accuracy")


@dataclass(frozen=True)
class Normed:
    """A batch norm before the head, and dropout where asked for."""

    name: ClassVar[str] = "normed"

    drop: float = 0.0
    norm: bool = True
    momentum: float | None = 0.1

    def build(self, input_shape, outputs, *, generator):
        body = [nn.Flatten(), linear_layer(5, 6, bias=True, generator=generator)]
        body += [nn.BatchNorm1d(6, momentum=self.momentum)] if self.norm else []
        body += [nn.Dropout(self.drop)] if self.drop else []
        return FeatureModel(nn.Sequential(*body), linear_layer(6, outputs, bias=True, generator=generator))


def trainer(model, **options):
    return TorchTrainer(
        Toy().build(seed=0), model, Training(**({"epochs": 2, "batch": 8, "lr": 0.1} | options)), seed=0
    )


def simulation(model, selector="random", *, k=3, engine="inline", server=None, **options):
    return Simulation(
        Toy(),
        model,
        ConstantDelays(),
        fedpace.make_selector(selector, k=k),
        training=Training(**({"epochs": 1, "batch": 8, "lr": 0.05} | options)),
        engine=EngineOptions(engine, workers=2 if engine == "processes" else 0),
        server=server,
    )


def tail(coach, vector):
    return vector[coach.trainable :]


def test_dropout_is_off_when_the_model_is_judged_and_measured():
    dropping, plain = trainer(Normed(drop=0.9, norm=False)), trainer(Normed(norm=False))
    assert torch.equal(dropping.initial, plain.initial)
    assert dropping.evaluate(dropping.initial) == plain.evaluate(plain.initial)
    assert dropping.local_losses(dropping.initial, [0])[0] == plain.local_losses(plain.initial, [0])[0]
    np.testing.assert_array_equal(dropping.moment(dropping.initial, 0), plain.moment(plain.initial, 0))
    assert torch.equal(dropping.gradient(dropping.initial, 1), plain.gradient(plain.initial, 1))


def test_dropout_is_on_in_training_by_draws_of_the_clients_own():
    coach, plain = trainer(Normed(drop=0.5, norm=False)), trainer(Normed(norm=False))
    before = torch.get_rng_state()
    one = coach.train(coach.initial, 0, 3).parameters
    assert torch.equal(torch.get_rng_state(), before), "the global generator stays where the user left it"
    assert not torch.equal(one, plain.train(plain.initial, 0, 3).parameters)
    coach.train(coach.initial, 1, 3)
    torch.manual_seed(99)
    assert torch.equal(coach.train(coach.initial, 0, 3).parameters, one), "neither others nor global state matter"
    assert not torch.equal(coach.train(coach.initial, 0, 4).parameters, one)


def test_a_batch_norm_is_judged_by_its_running_statistics():
    coach = trainer(Normed())
    trained = coach.train(coach.initial, 0, 0).parameters
    data = coach.data
    module = Normed().build((5,), 2, generator=torch.Generator())
    module.load_state_dict(coach.named_tensors(trained))
    module.eval()
    with torch.no_grad():
        expected = module(torch.from_numpy(data.test.inputs)).argmax(1).numpy()
    assert coach.evaluate(trained)[0] == pytest.approx((expected == data.test.targets).mean())
    again = coach.evaluate(trained)
    assert again == coach.evaluate(trained), "judging changes nothing"


def test_running_statistics_are_those_of_torch():
    """33 samples in batches of 8: the last sample joins the batch before it."""
    coach = trainer(Normed(), epochs=1)
    result = coach.train(coach.initial, 0, 0)
    assert result.steps == 4
    module = Normed().build((5,), 2, generator=torch.Generator())
    module.load_state_dict(coach.named_tensors(coach.initial))
    module.train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    samples = coach.data.train[0]
    order = stream(0, "train", 0, 0).permutation(33)
    for part in (order[:8], order[8:16], order[16:24], order[24:]):
        optimizer.zero_grad()
        nn.functional.cross_entropy(
            module(torch.from_numpy(samples.inputs[part])), torch.from_numpy(samples.targets[part])
        ).backward()
        optimizer.step()
    found, expected = coach.named_tensors(result.parameters), module.state_dict()
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name])
    assert found["body.2.num_batches_tracked"] == 4
    assert found["body.2.num_batches_tracked"].dtype == torch.int64


def test_a_client_trains_from_the_buffers_that_it_was_given():
    coach = trainer(Normed())
    first = coach.train(coach.initial, 0, 0).parameters
    alone = coach.train(coach.initial, 1, 0).parameters
    coach.train(first, 2, 0)
    assert torch.equal(coach.train(coach.initial, 1, 0).parameters, alone), "nothing of client 2 is left in the module"
    assert not torch.equal(tail(coach, coach.train(first, 1, 0).parameters), tail(coach, alone))


@pytest.mark.parametrize("server", [None, "nesterov", "fedadam"])
def test_the_servers_buffers_are_the_clients_mean(server):
    run = simulation(Normed(), server=None if server is None else fedpace.make_server(server))
    coach = run.trainer
    rounds = run.rounds()
    for current in islice(rounds, 4):
        if current.number == 0:
            before = run.parameters
            continue
        trained = [coach.train(before, client, current.number - 1).parameters for client in current.clients]
        mean = sum(w * tail(coach, t).double() for w, t in zip(current.weights, trained, strict=True))
        expected = torch.where(coach._flat.integer_buffers, mean.round(), mean).float()
        torch.testing.assert_close(tail(coach, run.parameters), expected)
        before = run.parameters
    rounds.close()


def test_the_mean_of_buffers():
    whole = torch.tensor([False, True])
    before = torch.tensor([9.0, 9.0])
    answers = [(torch.tensor([1.0, 1.0]), 0.25), (torch.tensor([2.0, 4.0]), 0.25)]
    assert mean_buffers(before, whole, answers).tolist() == [1.5, 2.0], "weights need not sum to 1; 2.5 is no integer"
    assert mean_buffers(before, whole, [*answers, (torch.tensor([-50.0, 0.0]), -3.0)]).tolist() == [1.5, 2.0]
    assert mean_buffers(before, whole, [(torch.zeros(2), 0.0)]) is before


def test_every_engine_gives_the_same_rounds():
    rounds = {}
    for engine in ("inline", "processes"):
        playing = simulation(Normed(drop=0.3), engine=engine).rounds()
        rounds[engine] = [(r.metric, r.loss, r.train_loss) for r in islice(playing, 3)]
        playing.close()
    assert rounds["inline"] == rounds["processes"]


@pytest.mark.parametrize("algorithm", ["fedprox", "scaffold"])
def test_other_algorithms_leave_buffers_alone(algorithm):
    run = simulation(Normed(), algorithm=algorithm)
    playing = run.rounds()
    last = list(islice(playing, 4))[-1]
    playing.close()
    assert np.isfinite(last.loss)
    named = run.trainer.named_tensors(run.parameters)
    assert (named["body.2.running_var"] > 0).all()
    assert named["body.2.num_batches_tracked"] > 0


def test_updates_and_sketches_are_of_the_parameters_alone():
    run = simulation(Normed(), "divfl", k=2, sketch=0)
    playing = run.rounds()
    list(islice(playing, 3))
    playing.close()
    assert run.coordinator.view().updates.shape[1] == run.trainer.trainable


def test_what_does_not_travel_stays_as_it_was_built():
    class Remembering(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(3), persistent=False)
            self.register_buffer("codes", torch.tensor([2**40]))

        def forward(self, inputs):
            self.seen = self.seen + 1
            self.codes.add_(1)
            return inputs

    body = nn.Sequential(Remembering(), nn.Linear(5, 4))
    body[1].weight.requires_grad_(False)
    module = FeatureModel(body, nn.Linear(4, 2))
    flat = FlatModel(module, classification=True)
    frozen = body[1].weight.clone()
    assert flat.trainable == 4 + 4 * 2 + 2, "what needs no gradient is not sent"
    start = flat.vector()
    flat.loss(torch.ones(2, 5), torch.tensor([0, 1])).backward()
    flat.parameters.sub_(flat.gradients)
    assert body[0].seen.tolist() == [1.0] * 3
    flat.load(start)
    assert body[0].seen.tolist() == [0.0] * 3
    assert body[0].codes.tolist() == [2**40]
    assert torch.equal(body[1].weight, frozen)


def test_a_model_without_anything_to_train_is_refused():
    module = FeatureModel(nn.Flatten(), nn.Linear(4, 2).requires_grad_(False))
    with pytest.raises(InputError, match="nothing to train"):
        FlatModel(module, classification=True)
