"""Measurements in chunks are those of the whole."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from fedpace.data.federated import FederatedData, Samples
from fedpace.models.builtin import Mlp
from fedpace.sim.torch_trainer import TorchTrainer, Training


@dataclass(frozen=True)
class Chunked:
    """An MLP that is measured `chunk` samples at a time."""

    name: ClassVar[str] = "chunked"

    chunk: int

    def build(self, input_shape, outputs, *, generator):
        model = Mlp(hidden=6).build(input_shape, outputs, generator=generator)
        model.chunk = self.chunk
        return model


def trainer(config):
    rng = np.random.Generator(np.random.PCG64(0))
    train, test = (Samples(rng.standard_normal((n, 4)).astype(np.float32), rng.integers(0, 3, n)) for n in (23, 17))
    data = FederatedData("toy", (train,), test, classes=3, metric="accuracy")
    return TorchTrainer(data, config, Training(), seed=0)


@pytest.mark.parametrize("chunk", [1, 5, 22, 23])
def test_measurements_do_not_depend_on_the_chunk(chunk):
    whole, pieces = trainer(Chunked(100)), trainer(replace(Chunked(1), chunk=chunk))
    start = whole.initial
    assert pieces.local_losses(start, [0])[0] == pytest.approx(whole.local_losses(start, [0])[0], rel=1e-5)
    torch.testing.assert_close(pieces.gradient(start, 0), whole.gradient(start, 0), rtol=1e-4, atol=1e-6)
    assert pieces.evaluate(start) == pytest.approx(whole.evaluate(start), rel=1e-5)
