"""The paper's networks: their sizes, their features, and weights that come from the given generator alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpace._base.errors import InputError
from fedpace.models.builtin import Conv2, Resnet18, StackedLstm

IMAGE, COLOUR, WINDOW = (1, 28, 28), (3, 32, 32), (80,)
CASES = [
    (Conv2(), IMAGE, 10, 500),
    (Conv2(channels=(3, 4), padding=2, hidden=6), COLOUR, 5, 6),
    (Resnet18(width=8, groups=4), COLOUR, 10, 64),
    (Resnet18(width=8, groups=8), IMAGE, 62, 64),
    (StackedLstm(), WINDOW, 80, 100),
    (StackedLstm(embedding=3, hidden=7, layers=3), (12,), 20, 7),
]
IDS = [repr(case[0]) for case in CASES]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def inputs_of(shape, outputs, count=3):
    if len(shape) == 1:
        return torch.randint(0, outputs, (count, *shape), generator=generator(5)).to(torch.uint8)
    return torch.randn(count, *shape, generator=generator(5))


def weights(model):
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


@pytest.mark.parametrize(("config", "shape", "outputs", "features"), CASES, ids=IDS)
def test_features_are_the_heads_input(config, shape, outputs, features):
    model = config.build(shape, outputs, generator=generator())
    inputs = inputs_of(shape, outputs)
    found = model.features(inputs)
    assert found.shape == (3, features)
    torch.testing.assert_close(model(inputs), model.head(found))
    assert model(inputs).shape == (3, outputs)
    assert model.moving_features
    assert model.head.bias is not None


@pytest.mark.parametrize(("config", "shape", "outputs", "features"), CASES, ids=IDS)
def test_weights_come_from_the_given_generator_alone(config, shape, outputs, features):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = weights(config.build(shape, outputs, generator=generator()))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(weights(config.build(shape, outputs, generator=generator())), one)
    assert not torch.equal(weights(config.build(shape, outputs, generator=generator(1))), one)
    assert torch.isfinite(one).all()


@pytest.mark.parametrize(("config", "shape", "outputs", "features"), CASES, ids=IDS)
def test_every_parameter_learns(config, shape, outputs, features):
    model = config.build(shape, outputs, generator=generator())
    loss = nn.functional.cross_entropy(model(inputs_of(shape, outputs)), torch.arange(3) % outputs)
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize(("config", "shape", "outputs", "features"), CASES, ids=IDS)
def test_a_sample_does_not_see_its_neighbours(config, shape, outputs, features):
    """No batch statistics: averaging models is then all there is to average."""
    model = config.build(shape, outputs, generator=generator())
    inputs = inputs_of(shape, outputs)
    torch.testing.assert_close(model(inputs)[:1], model(inputs[:1]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "shape", "outputs", "parameters"),
    [
        # 1.7 MB, 26 MB: the sizes that the authors' earlier code gives for MNIST and FEMNIST.
        (Conv2(), IMAGE, 10, 520 + 25_050 + 400_500 + 5_010),
        (Conv2(channels=(32, 64), padding=2, hidden=2048), IMAGE, 62, 6_603_710),
        (Conv2(), IMAGE, 62, 431_080 + 52 * 501),
        (Resnet18(), COLOUR, 10, 11_173_962),
        (StackedLstm(), WINDOW, 80, 640 + 44_000 + 80_800 + 8_080),
        (StackedLstm(hidden=256), WINDOW, 80, 819_920),
    ],
)
def test_sizes(config, shape, outputs, parameters):
    assert weights(config.build(shape, outputs, generator=generator())).numel() == parameters


def test_the_scales_of_the_start():
    conv = Conv2().build(IMAGE, 10, generator=generator()).body[4]
    bound = (20 * 25) ** -0.5
    assert conv.weight.abs().max() <= bound
    assert conv.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
    residual = Resnet18(width=16).build(COLOUR, 10, generator=generator()).body[3].path[0]
    assert residual.weight.std().item() == pytest.approx((2 / (16 * 9)) ** 0.5, rel=0.05)


def test_the_lstm_reads_to_the_end():
    """The features depend on the last character and on earlier ones."""
    model = StackedLstm(hidden=8).build(WINDOW, 80, generator=generator())
    inputs = inputs_of(WINDOW, 80, count=1)
    features = model.features(inputs)
    for place in (60, 79):
        changed = inputs.clone()
        changed[0, place] = (int(changed[0, place]) + 1) % 80
        assert not torch.equal(model.features(changed), features)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Conv2(channels=(0, 5)), "channels of conv2 must be at least 1, but 0 came"),
        (lambda: Conv2(padding=-1), "padding of conv2"),
        (lambda: Conv2(hidden=0), "hidden of conv2"),
        (lambda: Resnet18(width=0), "width of resnet18"),
        (lambda: Resnet18(width=12, groups=8), "groups of resnet18 must divide width = 12, but 8 came"),
        (lambda: StackedLstm(hidden=0), "hidden of stacked-lstm"),
        (lambda: StackedLstm(layers=0), "layers of stacked-lstm"),
    ],
)
def test_bad_options(make, words):
    with pytest.raises(InputError, match=words):
        make()


@pytest.mark.parametrize(
    ("config", "shape", "words"),
    [
        (Conv2(), (64,), r"conv2 takes images of \(channels, height, width\), but inputs of \(64,\) came"),
        (Conv2(), (1, 8, 8), r"images of \(1, 8, 8\) are too small for conv2"),
        (Resnet18(), (64,), r"resnet18 takes images"),
        (StackedLstm(), IMAGE, r"stacked-lstm takes windows of \(characters,\)"),
    ],
)
def test_inputs_that_do_not_fit(config, shape, words):
    with pytest.raises(InputError, match=words):
        config.build(shape, 10, generator=generator())
