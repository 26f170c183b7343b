"""Writers and speaking roles at a price that two cores can bear: shrunk, cloned, by a few characters; and run."""

from __future__ import annotations

import dataclasses
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace.config import load_experiment
from fedpace.data._public_sets import rotate
from fedpace.data.femnist import Femnist
from fedpace.data.shakespeare import Shakespeare
from fedpace.sim.rounds import simulate

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def test_shrunk_images_are_means_of_squares(folder, parquet):
    parquet.generate(folder, "femnist")
    options = {"clients": 6, "min_samples": 5, "folder": str(folder)}
    whole, small = Femnist(**options).build(seed=1), Femnist(**options, shrink=4).build(seed=1)
    assert small.input_shape == (1, 7, 7)
    for one, other in zip(whole.train, small.train, strict=True):
        means = one.inputs.reshape(len(one), 1, 7, 4, 7, 4).mean(axis=(3, 5))
        np.testing.assert_allclose(other.inputs, means, atol=1e-4)
        np.testing.assert_array_equal(other.targets, one.targets)


def test_clones_are_writers_turned_and_none_trains_on_what_is_held_out(folder, parquet):
    parquet.generate(folder, "femnist")
    options = {"min_samples": 5, "folder": str(folder), "test_fraction": 0.3}
    cloned = Femnist(clients=40, partition="cloned", samples=8, max_rotation=0.0, **options).build(seed=2)
    assert (cloned.clients, cloned.classes, len(cloned.test)) == (40, 62, 60)
    assert {len(client) for client in cloned.train} == {8}
    trained = {image.tobytes() for client in cloned.train for image in client.inputs}
    assert not trained & {image.tobytes() for image in cloned.test.inputs}
    natural = Femnist(clients=0, **options).build(seed=2)
    owned = [{image.tobytes() for image in client.inputs} for client in natural.train]
    for number, client in enumerate(cloned.train):
        assert {image.tobytes() for image in client.inputs} <= owned[number % 6], "a clone has its writer's images"
    turned = Femnist(clients=40, partition="cloned", samples=8, **options)
    angles = turned.angles(2)
    assert np.abs(angles).max() <= 15
    for number in (0, 7):
        upright = cloned.train[number].inputs * 0.1633 + 0.9615
        expected = 1 - rotate((1 - upright).astype(np.float32), float(angles[number]))
        found = turned.build(seed=2).train[number].inputs * 0.1633 + 0.9615
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_the_last_characters_as_columns(folder, parquet):
    parquet.generate(folder, "shakespeare")
    options = {"clients": 2, "min_samples": 200, "folder": str(folder)}
    numbers, columns = Shakespeare(**options).build(seed=0), Shakespeare(**options, context=3).build(seed=0)
    assert columns.input_shape == (240,)
    for one, other in zip(numbers.train, columns.train, strict=True):
        places = np.argmax(other.inputs.reshape(len(other), 3, 80), axis=2)
        np.testing.assert_array_equal(places, one.inputs[:, -3:])
        np.testing.assert_array_equal(other.inputs.sum(axis=1), 3.0)
        np.testing.assert_array_equal(one.targets, other.targets)


@pytest.mark.parametrize(
    ("config", "options", "says"),
    [
        (Femnist, {"shrink": 3}, "shrink"),
        (Femnist, {"partition": "cloned", "clients": 0}, "how many clients"),
        (Femnist, {"partition": "clones"}, "partition"),
        (Femnist, {"samples": 0}, "samples"),
        (Shakespeare, {"context": 81}, "context"),
        (Shakespeare, {"partition": "cloned"}, "partition"),
    ],
)
def test_options_of_natural_sets_that_make_no_sense(config, options, says):
    with pytest.raises(InputError, match=says):
        config(**options)


@pytest.mark.parametrize("name", ["writers", "roles"])
def test_the_natural_experiments_run_on_the_real_data(name, real, monkeypatch):
    experiment = load_experiment(EXPERIMENTS / f"{name}.toml")
    monkeypatch.setenv("FEDPACE_DATA", real(experiment.data.name))
    data = dataclasses.replace(experiment.data, clients=40)
    chosen = {scheme.label: scheme for scheme in experiment.schemes}
    for label in ("random", "pace"):
        rounds = simulate(
            data,
            experiment.model,
            experiment.delays,
            chosen[label].selector,
            training=experiment.training,
            fleet=experiment.fleet,
            clock=experiment.clock,
            seed=1,
        )
        played = list(islice(rounds, 9))
        assert played[-1].metric > (0.4 if name == "writers" else 0.2), label
