"""Clients trained at once, against the loop over clients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stacks import COUNTS, MODELS, federation, trainings
from torch import nn

from fedpace._base.rng import stream
from fedpace.models.builtin import Conv2, Linear, Softmax
from fedpace.models.contract import FeatureModel
from fedpace.sim.engines.engine import one_thread
from fedpace.sim.stacking import STACK_CLIENTS
from fedpace.sim.torch_trainer import DivergedError, TorchTrainer, Training, linear_layers

TRAININGS = trainings()


def moved(trainer, seed=1):
    """Parameters away from the start, where ReLU and softmax do something."""
    noise = torch.from_numpy(stream(seed, "parameters").normal(size=trainer.initial.numel()) * 0.3)
    return trainer.initial + noise.float()


# The same examples each time: now and then two ways of rounding fall on different sides of a ReLU's bend.
@settings(max_examples=60, deadline=None, derandomize=True)
@given(counts=COUNTS, kind=MODELS, training=TRAININGS, corrected=st.booleans(), step=st.integers(0, 5))
def test_it_is_the_loop_over_clients(counts, kind, training, corrected, step):
    model, classes = kind
    trainer = TorchTrainer(federation(counts, classes=classes), model, training, seed=2)
    clients = list(range(len(counts)))
    start = moved(trainer)
    noise = torch.randn(len(counts), start.numel(), generator=torch.Generator().manual_seed(3))
    added = noise * 0.1 if corrected else None
    at_once = trainer.train_many(start, clients, step, added)
    for client, result in zip(clients, at_once, strict=True):
        alone = trainer.train_alone(start, client, step, None if added is None else added[client])
        torch.testing.assert_close(result.parameters, alone.parameters, rtol=1e-4, atol=1e-5)
        assert result.loss == pytest.approx(alone.loss, rel=1e-4, abs=1e-6)
        assert result.steps == alone.steps


@settings(max_examples=60, deadline=None, derandomize=True)
@given(counts=COUNTS, kind=MODELS, training=TRAININGS, samples=st.sampled_from([0, 1, 5]), data=st.data())
def test_whom_a_client_is_stacked_with_shows_in_rounding_only(counts, kind, training, samples, data):
    model, classes = kind
    trainer = TorchTrainer(federation(counts, classes=classes), model, training, seed=2)
    start = moved(trainer)
    clients = data.draw(st.permutations(range(len(counts))))
    with one_thread():
        together = trainer.train_many(start, clients, 4)
        gradients = trainer.gradients(start, clients)
        losses = trainer.local_losses(start, clients, samples=samples, step=1)
        again = trainer.train_many(start, clients, 4)
        for position, client in enumerate(clients):
            assert torch.equal(again[position].parameters, together[position].parameters), (
                "the same stack, the same bits"
            )
            alone = trainer.train(start, client, 4)
            torch.testing.assert_close(alone.parameters, together[position].parameters, rtol=1e-5, atol=1e-6)
            assert alone.loss == pytest.approx(together[position].loss, rel=1e-5)
            torch.testing.assert_close(trainer.gradient(start, client), gradients[position], rtol=1e-5, atol=1e-6)
            loss = trainer.local_losses(start, [client], samples=samples, step=1)[0]
            assert loss == pytest.approx(losses[position], rel=1e-5)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(counts=COUNTS, kind=MODELS)
def test_gradients_and_losses_are_those_that_torch_derives(counts, kind):
    model, classes = kind
    trainer = TorchTrainer(federation(counts, classes=classes), model, Training(), seed=2)
    start = moved(trainer)
    clients = list(range(len(counts)))
    gradients, losses = trainer.gradients(start, clients), trainer.local_losses(start, clients)
    for client in clients:
        torch.testing.assert_close(gradients[client], trainer._gradient(start, client), rtol=1e-4, atol=1e-5)
        assert losses[client] == pytest.approx(trainer._local_loss(start, client, None), rel=1e-5)


def test_a_cohort_is_cut_into_stacks_that_fit_the_caches():
    many = TorchTrainer(federation([3] * 300), Softmax(), Training(), seed=0)
    parts = many.split_cohort(range(300))
    assert [client for part in parts for client in part] == list(range(300))
    assert max(map(len, parts)) == STACK_CLIENTS
    wide = TorchTrainer(federation([40] * 60, width=3000), Softmax(), Training(batch=0), seed=0)
    assert max(map(len, wide.split_cohort(range(60)))) < 60
    assert many.split_cohort([]) == []


def test_a_client_that_diverges_is_named_and_spoils_nobody_else():
    counts = [4, 4, 4]
    data = federation(counts, classes=None)
    data.train[1].inputs[:] *= 1e18
    trainer = TorchTrainer(data, Linear(), Training(epochs=3), seed=0)
    with pytest.raises(DivergedError, match=r"client 1 diverged in round 8 "):
        trainer.train_many(trainer.initial, [0, 1, 2], 7)
    assert all(torch.isfinite(r.parameters).all() for r in trainer.train_many(trainer.initial, [0, 2], 7))


@pytest.mark.parametrize(
    ("module", "stackable"),
    [
        (FeatureModel(nn.Flatten(), nn.Linear(3, 2)), True),
        (FeatureModel(nn.Sequential(nn.Flatten(), nn.Linear(3, 4), nn.ReLU()), nn.Linear(4, 2)), True),
        (FeatureModel(nn.Sequential(nn.Flatten(), nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 2)), False),
        (FeatureModel(nn.Sequential(nn.Flatten(), nn.Linear(3, 4)), nn.Linear(4, 2)), False),
        (FeatureModel(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), nn.Linear(4, 2)), False),
        (FeatureModel(nn.Sequential(nn.Flatten(), nn.Linear(800, 800), nn.ReLU()), nn.Linear(800, 2)), False),
        (Conv2().build((1, 28, 28), 10, generator=torch.Generator()), False),
    ],
    ids=["softmax", "mlp", "another activation", "no activation", "no flatten", "large", "convolutions"],
)
def test_which_models_are_stacked(module, stackable):
    assert (linear_layers(module) is not None) is stackable
