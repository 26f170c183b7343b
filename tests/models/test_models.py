"""Models: features and head are the forward pass, and every weight comes from the generator that is given."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpace._base.errors import InputError
from fedpace.models.builtin import Linear, Mlp, Softmax
from fedpace.models.contract import linear_layer, zero_layer

CONFIGS = [Linear(), Linear(bias=True), Softmax(), Mlp(hidden=5), Mlp(hidden=5, layers=3)]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def build(config, seed=0, shape=(2, 3), outputs=4):
    return config.build(shape, outputs, generator=generator(seed))


def weights(model):
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_the_head_on_the_features_is_the_forward_pass(config):
    model = build(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-1, 1, generator=generator(9))
    inputs = torch.randn(7, 2, 3, generator=generator(1))
    features = model.features(inputs)
    assert features.shape == (7, model.head.in_features)
    outputs = model(inputs)
    assert outputs.shape == (7, 4)
    torch.testing.assert_close(outputs, model.head(features))


@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_the_global_generator_is_neither_used_nor_moved(config):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = weights(build(config))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(weights(build(config)), one)


@pytest.mark.parametrize("config", [Linear(), Linear(bias=True), Softmax()], ids=repr)
def test_convex_models_start_at_zero_with_fixed_features(config):
    model = build(config)
    assert not weights(model).any()
    assert not model.moving_features
    inputs = torch.randn(3, 2, 3, generator=generator())
    torch.testing.assert_close(model.features(inputs), inputs.reshape(3, 6))


def test_biases():
    assert build(Linear()).head.bias is None
    assert build(Linear(bias=True)).head.bias is not None
    assert build(Softmax()).head.bias is not None


def test_the_mlp_has_the_layers_that_are_asked_for():
    model = build(Mlp(hidden=5, layers=2), shape=(8, 8), outputs=3)
    shapes = [tuple(parameter.shape) for parameter in model.parameters()]
    assert shapes == [(5, 64), (5,), (5, 5), (5,), (3, 5), (3,)]
    assert model.moving_features
    assert [type(layer) for layer in model.body] == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear, nn.ReLU]
    assert (model.features(torch.randn(9, 8, 8, generator=generator())) >= 0).all(), "features are behind the ReLU"


def test_seeds_decide_the_mlps_weights():
    one, same, other = (weights(build(Mlp(), seed)) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_layers_start_within_torchs_own_bounds():
    layer = linear_layer(100, 50, bias=True, generator=generator())
    assert layer.weight.abs().max() <= 0.1
    assert layer.weight.std().item() == pytest.approx(0.1 / 3**0.5, rel=0.05)
    assert layer.bias.abs().max() <= 0.1
    assert layer.bias.abs().max() > 0.05
    assert not torch.equal(layer.weight[0], layer.weight[1])
    assert not zero_layer(3, 2, bias=True).weight.any()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hidden": 0}, "hidden of mlp must be at least 1, but 0 came"),
        ({"layers": 0}, "layers of mlp must be at least 1, but 0 came"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(InputError, match=words):
        Mlp(**options)
