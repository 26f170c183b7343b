"""The simulator's reference workloads, drawn by fedpace's own loaders and handed to all contestants as files."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
from workload import Options, Workload

from fedpace._base import registry
from fedpace._base.rng import stream
from fedpace.data.digits import Digits
from fedpace.data.federated import FederatedData, Metric, Samples
from fedpace.data.mnist import Mnist
from fedpace.sim.torch_trainer import TorchTrainer
from fedpace.sim.training import Training

SEED = 0


def images(*, clients: int = 100, cohort: int = 10, rounds: int = 20, samples: int = 0, test: int = 0) -> Workload:
    """Return W: MNIST with a Dirichlet(2) label mix, the 20-50-500 ConvNet, five local epochs."""
    data = Mnist(clients=clients, samples=samples, test_samples=test).build(seed=SEED)
    return as_workload(data, Options("conv2", epochs=5, batch=32, lr=0.01, momentum=0.9), cohort, rounds)


def noise(*, clients: int = 6, cohort: int = 3, samples: int = 20, rounds: int = 4) -> Workload:
    """Return something of W's shape that nothing can be learnt from and no data set is needed for."""
    rng = stream(SEED, "noise")

    def draw(count: int) -> Samples:
        return Samples(rng.normal(size=(count, 1, 28, 28)).astype(np.float32), rng.permutation(count) % 10)

    train = tuple(draw(samples) for _ in range(clients))
    data = FederatedData("noise", train, draw(3 * samples), classes=10, metric="accuracy")
    return as_workload(data, Options("conv2", epochs=1, batch=8, lr=0.01, momentum=0.9), cohort, rounds)


def overhead(model: str, *, clients: int = 1000, cohort: int = 100, rounds: int = 50) -> Workload:
    """Return V: clients of about 100 resampled digits and a model so small that the arithmetic hardly counts."""
    data = ResampledDigits(clients=clients).build(seed=SEED)
    return as_workload(data, Options(model, epochs=1, batch=32, lr=0.1, momentum=0.9), cohort, rounds)


@dataclasses.dataclass(frozen=True)
class ResampledDigits:
    """The digits, each client drawing its own samples with replacement."""

    name: ClassVar[str] = "resampled-digits"
    metric: ClassVar[Metric] = "accuracy"

    clients: int = 1000
    smallest: int = 80
    largest: int = 120

    def build(self, *, seed: int) -> FederatedData:
        """Draw the samples of `seed`."""
        digits = Digits(clients=1).build(seed=seed)
        (pool,) = digits.train
        rng = stream(seed, "data", self.name)
        sizes = rng.integers(self.smallest, self.largest, self.clients, endpoint=True)
        drawn = [rng.integers(len(pool), size=size) for size in sizes]
        clients = tuple(Samples(pool.inputs[rows], pool.targets[rows]) for rows in drawn)
        return dataclasses.replace(digits, train=clients)


def as_workload(data: FederatedData, options: Options, cohort: int, rounds: int) -> Workload:
    """Return what contestants get: the samples, fedpace's initial model, and cohorts drawn at random."""
    model = registry.models.make(options.model)
    training = Training(epochs=options.epochs, batch=options.batch, lr=options.lr, momentum=options.momentum)
    rng = stream(SEED, "cohorts")
    return Workload(
        options,
        inputs=np.concatenate([client.inputs for client in data.train]),
        targets=np.concatenate([client.targets for client in data.train]),
        starts=np.cumsum([0, *(len(client) for client in data.train)]),
        test_inputs=data.test.inputs,
        test_targets=data.test.targets,
        initial=TorchTrainer(data, model, training, seed=SEED).initial.numpy(),
        cohorts=np.stack([rng.choice(data.clients, cohort, replace=False) for _ in range(rounds)]),
    )
