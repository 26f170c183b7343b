"""The public data sets over clients, on generated files of the same columns; the real ones where they are present."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpace._base import registry
from fedpace._base.errors import InputError
from fedpace.data import hub
from fedpace.data._public_sets import rotate
from fedpace.data.cifar10 import Cifar10
from fedpace.data.fashion_mnist import FashionMnist
from fedpace.data.femnist import Femnist
from fedpace.data.mnist import Mnist
from fedpace.data.shakespeare import Shakespeare
from fedpace.delays.constant import ConstantDelays
from fedpace.models.builtin import Conv2, StackedLstm
from fedpace.selectors.random import Random
from fedpace.sim.rounds import simulate
from fedpace.sim.torch_trainer import Training

IMAGES = [Mnist, FashionMnist, Cifar10]
PARTITIONS = ["dirichlet", "rotated", "iid", "power-law"]


def pixels_of(config, samples):
    """Undo the normalisation."""
    mean, deviation = (np.array(v)[:, None, None] for v in (config.mean, config.deviation))
    return samples.inputs * deviation + mean


def bytes_of(pixels):
    return sorted(image.tobytes() for image in np.rint(255 * pixels).astype(np.uint8))


def same(one, two):
    return all(
        np.array_equal(a.inputs, b.inputs) and np.array_equal(a.targets, b.targets)
        for a, b in zip((*one.train, one.test), (*two.train, two.test), strict=True)
    )


def test_every_source_is_registered_under_its_name():
    assert set(hub.SOURCES) <= set(registry.datasets.names())


def test_the_papers_numbers_are_the_defaults():
    assert (Mnist().clients, FashionMnist().clients, Cifar10().clients) == (100, 100, 50)
    assert (Mnist().alpha, Mnist().max_rotation, Mnist().partition) == (2.0, 45.0, "dirichlet")


@pytest.mark.parametrize("config", IMAGES)
@pytest.mark.parametrize("partition", PARTITIONS)
def test_every_image_goes_to_one_client(config, partition, folder, parquet):
    parquet.generate(folder, config.name)
    made = config(clients=6, partition=partition, folder=str(folder))
    data = made.build(seed=0)
    rows = hub.load(config.name, str(folder)).splits
    assert data.clients == 6
    assert sum(map(len, data.train)) == 120
    assert len(data.test_sizes) == 6
    assert sum(data.test_sizes) == len(data.test) == 60
    assert data.input_shape == hub.SOURCES[config.name].shape
    assert data.classes == 10
    assert data.test.inputs.dtype == np.float32
    if partition != "rotated":
        seen = np.concatenate([pixels_of(made, samples) for samples in data.train])
        assert bytes_of(seen) == bytes_of(np.asarray(rows["train"].inputs) / 255)
        assert bytes_of(pixels_of(made, data.test)) == bytes_of(np.asarray(rows["test"].inputs) / 255)
    assert same(data, made.build(seed=0))
    assert not same(data, made.build(seed=1))


def test_a_clients_train_and_test_images_turn_by_its_angle(folder, parquet):
    parquet.generate(folder, "mnist")
    turned = Mnist(clients=5, partition="rotated", max_rotation=40.0, folder=str(folder))
    upright = Mnist(clients=5, partition="iid", folder=str(folder))
    angles = turned.angles(3)
    assert ((angles >= 0) & (angles <= 40)).all()
    assert len(set(angles)) == 5
    one, two = turned.build(seed=3), upright.build(seed=3)
    starts = np.cumsum([0, *one.test_sizes])
    for client, angle in enumerate(angles):
        own = slice(starts[client], starts[client + 1])
        for a, b in (
            (one.train[client].inputs, two.train[client].inputs),
            (one.test.inputs[own], two.test.inputs[own]),
        ):
            before, after = (x * turned.deviation[0] + turned.mean[0] for x in (b, a))
            np.testing.assert_allclose(after, rotate(before.astype(np.float32), angle), atol=1e-5)
    assert upright.angles(3) is None


def test_power_law_sizes(folder, parquet):
    parquet.generate(folder, "mnist")
    data = Mnist(clients=6, partition="power-law", exponent=1.5, folder=str(folder)).build(seed=0)
    sizes = np.array([len(samples) for samples in data.train])
    assert sizes.max() > 5 * sizes.min()
    assert np.corrcoef(sizes, data.test_sizes)[0, 1] > 0.99, "a client's test set is of its share too"


def test_a_part_of_the_images(folder, parquet):
    parquet.generate(folder, "mnist")
    data = Mnist(clients=4, samples=40, test_samples=20, folder=str(folder)).build(seed=0)
    assert (sum(map(len, data.train)), len(data.test)) == (40, 20)


def test_femnist_by_writer(folder, parquet):
    parquet.generate(folder, "femnist")
    config = Femnist(clients=4, min_samples=20, test_fraction=0.2, folder=str(folder))
    data = config.build(seed=0)
    rows = hub.load("femnist", str(folder)).splits["train"]
    assert [len(samples) for samples in data.train] == [16] * 4
    assert data.test_sizes == (4,) * 4
    owner_of = {
        config.prepared(np.asarray(rows.inputs[row : row + 1])).tobytes(): int(rows.owners[row]) for row in range(120)
    }
    starts = np.cumsum([0, *data.test_sizes])
    for client, samples in enumerate(data.train):
        own = [*samples.inputs, *data.test.inputs[starts[client] : starts[client + 1]]]
        assert len({owner_of[image.tobytes()] for image in own}) == 1
        assert len({image.tobytes() for image in own}) == 20, "train and test do not overlap"
    assert data.classes == 62
    assert same(data, config.build(seed=0))
    assert not same(data, config.build(seed=1))


def test_all_who_have_enough(folder, parquet):
    parquet.generate(folder, "femnist")
    assert Femnist(clients=0, min_samples=20, folder=str(folder)).build(seed=0).clients == 6
    with pytest.raises(
        InputError, match="7 clients of femnist were asked for, but only 6 of its 6 have min_samples = 20"
    ):
        Femnist(clients=7, min_samples=20, folder=str(folder)).build(seed=0)
    with pytest.raises(InputError, match="only 0 of its 6 have min_samples = 21"):
        Femnist(clients=0, min_samples=21, folder=str(folder)).build(seed=0)


@pytest.mark.parametrize("config", [Femnist(clients=5, min_samples=20, partition="iid"), Shakespeare(3, "iid", 200)])
def test_dealt_out_evenly(config, folder, parquet):
    from dataclasses import replace

    parquet.generate(folder, config.name)
    natural = replace(config, folder=str(folder), partition="natural").build(seed=0)
    dealt = replace(config, folder=str(folder)).build(seed=0)
    assert sum(map(len, dealt.train)) == sum(map(len, natural.train))
    assert max(map(len, dealt.train)) - min(map(len, dealt.train)) <= 1
    one, two = (sorted(row.tobytes() for row in data.test.inputs) for data in (natural, dealt))
    assert one == two, "the same rows are held out"


def test_shakespeare_holds_out_the_last_windows(folder, parquet):
    table = parquet.text_table(900)
    parquet.write(folder, "shakespeare", table)
    data = Shakespeare(clients=3, min_samples=300, folder=str(folder)).build(seed=0)
    rows = hub.load("shakespeare", str(folder)).splits["train"]
    assert [len(samples) for samples in data.train] == [300 - 30 - 80] * 3
    assert data.test_sizes == (30, 30, 30)
    for client in range(3):
        start = 300 * client
        np.testing.assert_array_equal(data.train[client].inputs, rows.inputs[start : start + 190])
        held = slice(30 * client, 30 * client + 30)
        np.testing.assert_array_equal(data.test.inputs[held], rows.inputs[start + 270 : start + 300])
        np.testing.assert_array_equal(data.test.targets[held], rows.labels[start + 270 : start + 300])
    assert data.input_shape == (80,)
    assert data.classes == 80
    assert data.label_histograms().shape == (3, 80)
    few = Shakespeare(clients=3, min_samples=300, samples=150, folder=str(folder)).build(seed=0)
    assert [len(samples) for samples in few.train] == [150 - 15 - 80] * 3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Mnist(clients=0), "clients of mnist must be at least 1, but 0 came"),
        (lambda: Mnist(partition="natural"), "partition of mnist"),
        (lambda: Mnist(alpha=0.0), "alpha of mnist"),
        (lambda: FashionMnist(max_rotation=math.nan), "max_rotation of fashion-mnist"),
        (lambda: Cifar10(exponent=-1.0), "exponent of cifar10"),
        (lambda: Cifar10(samples=-1), "samples of cifar10"),
        (lambda: Femnist(partition="dirichlet"), "partition of femnist"),
        (lambda: Femnist(min_samples=1), "min_samples of femnist must be at least 2"),
        (lambda: Femnist(test_fraction=1.0), r"test_fraction of femnist must lie in \(0, 1\)"),
        (lambda: Shakespeare(clients=-1), "clients of shakespeare"),
        (lambda: Shakespeare(min_samples=80), "a role of 80 windows would have none to train on"),
        (lambda: Shakespeare(samples=60), "a role of 60 windows would have none to train on"),
    ],
)
def test_bad_options(make, words):
    with pytest.raises(InputError, match=words):
        make()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clients": 121}, "120 samples cannot be split over 121 clients: each needs at least one"),
        ({"clients": 61, "partition": "iid"}, "60 samples cannot be split over 61 clients"),
        ({"samples": 121}, "samples of mnist is 121, but its train split has 120 images"),
        ({"test_samples": 61}, "test_samples of mnist is 61, but its test split has 60 images"),
    ],
)
def test_splits_that_cannot_be(options, words, folder, parquet):
    parquet.generate(folder, "mnist")
    with pytest.raises(InputError, match=words):
        Mnist(**{"clients": 5, "folder": str(folder), **options}).build(seed=0)


@pytest.mark.parametrize(
    ("data", "model"),
    [
        (Mnist(clients=4, partition="rotated"), Conv2(channels=(2, 3), hidden=8)),
        (Femnist(clients=4, min_samples=20), Conv2(channels=(2, 3), hidden=8)),
        (Shakespeare(clients=3, min_samples=200, samples=150), StackedLstm(hidden=8)),
    ],
)
def test_a_federation_trains_on_it(data, model, folder, parquet):
    """Files to rounds: bytes of text and pixels reach the model as it takes them, moments included."""
    from dataclasses import replace

    parquet.generate(folder, data.name)
    rounds = simulate(
        replace(data, folder=str(folder)), model, ConstantDelays(), Random(k=2), training=Training(epochs=1, lr=0.01)
    )
    metrics = [next(rounds).metric for _ in range(3)]
    assert all(0 <= metric <= 1 for metric in metrics)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "clients", "train", "test"),
    [
        (Mnist(), 100, 60_000, 10_000),
        (Mnist(partition="rotated"), 100, 60_000, 10_000),
        (FashionMnist(), 100, 60_000, 10_000),
        (Femnist(clients=0), 272, None, None),
        (Shakespeare(), 100, None, None),
        (Cifar10(), 50, 50_000, 10_000),
    ],
)
def test_the_real_sets(config, clients, train, test, real):
    from dataclasses import replace

    data = replace(config, folder=real(config.name)).build(seed=0)
    assert data.clients == clients
    if train:
        assert (sum(map(len, data.train)), len(data.test)) == (train, test)
        assert len({len(samples) for samples in data.train}) == 1
    if config.name != "shakespeare":
        assert abs(float(data.test.inputs.mean())) < 0.25
        assert float(data.test.inputs.std()) == pytest.approx(1, abs=0.1)
