"""Every experiment of the repository reads, and its model fits its data, without any of the data."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedpace.config import load_experiment
from fedpace.data import hub

EXPERIMENTS = sorted((Path(__file__).parents[2] / "experiments").glob("*.toml"))
PAPER = {  # table 1
    "dirichlet-mnist": 0.95,
    "rotated-mnist": 0.93,
    "dirichlet-fashion-mnist": 0.83,
    "rotated-fashion-mnist": 0.77,
    "dirichlet-cifar10": 0.67,
    "rotated-cifar10": 0.66,
    "femnist": 0.8,
    "shakespeare": 0.43,
    "quadratic": 2.95,
}


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_it_reads_and_its_model_fits_its_data(path):
    experiment = load_experiment(path)
    if experiment.data.name in hub.SOURCES:
        source = hub.SOURCES[experiment.data.name]
        generator = torch.Generator().manual_seed(0)
        model = experiment.model.build(source.shape, source.classes, generator=generator)
        assert model.head.out_features == source.classes


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_nine_sets_have_its_targets(name):
    experiment = load_experiment(Path(__file__).parents[2] / "experiments" / f"{name}.toml")
    assert experiment.name == name
    assert experiment.stop.target == PAPER[name]
    if name != "quadratic":
        assert experiment.training.epochs == 5
        assert experiment.data.clients == (50 if "cifar10" in name else 100)
