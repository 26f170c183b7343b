"""What a client does in a round: FedAvg's local epochs of SGD, and the measurements that it reports.

McMahan et al. (AISTATS 2017). Everything random is keyed by (seed, step, client), so that a client's work does not
depend on who else is in the cohort, nor on the order in which the cohort is worked through.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from fedpace.core.checks import FloatArray, above, at_least, finite, one_of
from fedpace.core.errors import FedpaceError, InputError
from fedpace.core.rng import stream
from fedpace.data.federated import FederatedData, Samples
from fedpace.models.base import ModelConfig
from fedpace.moments.factor import factor_from_features
from fedpace.sim.flat import FlatModel


class DivergedError(FedpaceError, ArithmeticError):
    """Training left the finite numbers."""


@dataclass(frozen=True)
class Training:
    """How clients train.

    Args:
        epochs: passes over the client's data in a round (E of the paper).
        batch: samples in a step; 0 = all of the client's data.
        lr: step size.
        momentum: of SGD, starting at 0 in every round.
        weight_decay: of SGD.
        algorithm: `fedavg`, `fedprox` or `scaffold`.
        mu: weight of FedProx's pull towards the received model.
        sketch: entries of the update sketches that are reported to schemes that need them; 0 = whole updates.
        moment_samples: samples in the one batch from which a client computes its feature moment, as in the paper.
    """

    epochs: int = 5
    batch: int = 32
    lr: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0
    algorithm: Literal["fedavg", "fedprox", "scaffold"] = "fedavg"
    mu: float = 0.01
    sketch: int = 256
    moment_samples: int = 100

    def __post_init__(self) -> None:
        """Refuse options that make no sense."""
        at_least(self.epochs, 1, "epochs of training")
        at_least(self.batch, 0, "batch of training")
        above(self.lr, 0, "lr of training")
        at_least(self.weight_decay, 0, "weight_decay of training")
        at_least(self.moment_samples, 1, "moment_samples of training")
        at_least(self.sketch, 0, "sketch of training")
        at_least(self.mu, 0, "mu of training")
        for option in ("lr", "weight_decay", "mu"):
            finite(getattr(self, option), f"{option} of training")
        one_of(self.algorithm, ("fedavg", "fedprox", "scaffold"), "algorithm of training")
        if self.algorithm == "scaffold" and self.momentum:
            raise InputError("scaffold is defined for plain SGD: set momentum = 0")
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum of training must lie in [0, 1), but {self.momentum} came")


@dataclass(frozen=True, eq=False)
class LocalResult:
    """What came out of one client's round."""

    parameters: torch.Tensor
    loss: float
    """Mean loss over the first local epoch: each sample's loss just before it was learnt from."""
    steps: int
    """SGD steps taken."""


@dataclass(frozen=True)
class TestScore:
    """How the shared model does on a part of the test data."""

    __test__ = False  # pytest takes the name for a test's

    samples: int
    loss: float
    """Summed over the samples."""
    correct: int


class Trainer:
    """The clients' data and one model instance that all of them take turns in."""

    def __init__(self, data: FederatedData, model: ModelConfig, training: Training, *, seed: int) -> None:
        generator = torch.Generator().manual_seed(int(stream(seed, "model").integers(2**62)))
        module = model.build(data.input_shape, data.outputs, generator=generator)
        self.data = data
        self.model = model
        self.training = training
        self.seed = seed
        self._flat = FlatModel(module, classification=data.classes is not None)
        self._train = [_tensors(samples) for samples in data.train]
        self._test = _tensors(data.test)
        self.initial = self._flat.parameters.clone()

    @property
    def message_bytes(self) -> int:
        """Bytes that travel each way in a round: the model, and for SCAFFOLD its control variate too."""
        return self._flat.bytes * (2 if self.training.algorithm == "scaffold" else 1)

    @property
    def moving_features(self) -> bool:
        """Whether training moves the features that moments are made of."""
        return self._flat.module.moving_features

    @property
    def stackable(self) -> bool:
        """Whether many clients can be trained at once, their models stacked."""
        return False

    @property
    def at_once(self) -> int:
        """Clients that one task is best made of."""
        return 1

    @property
    def chunk(self) -> int:
        """Test samples that are judged at once."""
        return self._flat.module.chunk

    @property
    def test_chunks(self) -> int:
        """Parts that the test data are judged in."""
        return math.ceil(len(self.data.test) / self.chunk)

    def samples(self, client: int) -> int:
        """Return how many samples the client holds."""
        return len(self._train[client][1])

    def train_many(
        self,
        parameters: torch.Tensor,
        clients: Sequence[int],
        step: int,
        corrections: torch.Tensor | None = None,
    ) -> list[LocalResult]:
        """Train each of `clients` from `parameters`; row i of `corrections` is added to every gradient of the i-th."""
        rows = [None] * len(clients) if corrections is None else list(corrections)
        return [self.train(parameters, client, step, row) for client, row in zip(clients, rows, strict=True)]

    def gradients(self, parameters: torch.Tensor, clients: Sequence[int]) -> list[torch.Tensor]:
        """Return the clients' full-batch gradients at `parameters`."""
        return [self.gradient(parameters, client) for client in clients]

    def local_losses(
        self, parameters: torch.Tensor, clients: Sequence[int], *, samples: int = 0, step: int = 0
    ) -> list[float]:
        """Return the clients' training losses at `parameters`, on all their data or on some samples drawn in `step`."""
        return [self.local_loss(parameters, client, samples=samples, step=step) for client in clients]

    def train(
        self, parameters: torch.Tensor, client: int, step: int, correction: torch.Tensor | None = None
    ) -> LocalResult:
        """Train `client` from `parameters` and return where it ended; `correction` is added to every gradient."""
        inputs, targets = self._train[client]
        options, flat = self.training, self._flat
        count = len(targets)
        batch = options.batch or count
        rng = stream(self.seed, "train", step, client)
        flat.parameters.copy_(parameters)
        velocity = torch.zeros_like(flat.parameters) if options.momentum else None
        first_epoch, steps = 0.0, 0
        for epoch in range(options.epochs):
            order = torch.from_numpy(rng.permutation(count)) if batch < count else None
            for start in range(0, count, batch):
                chosen = slice(start, start + batch) if order is None else order[start : start + batch]
                flat.gradients.zero_()
                loss = flat.loss(inputs[chosen], targets[chosen])
                loss.backward()  # type: ignore[no-untyped-call]
                if epoch == 0:
                    first_epoch += loss.item() * len(targets[chosen]) / count
                if options.algorithm == "fedprox":
                    flat.gradients.add_(flat.parameters - parameters, alpha=options.mu)
                if correction is not None:
                    flat.gradients.add_(correction)
                self._descend(velocity)
                steps += 1
        if not math.isfinite(first_epoch) or not torch.isfinite(flat.parameters).all():
            raise DivergedError(
                f"client {client} diverged in round {step + 1} (training loss {first_epoch}): lower lr = {options.lr}"
            )
        return LocalResult(flat.parameters.clone(), first_epoch, steps)

    def _descend(self, velocity: torch.Tensor | None) -> None:
        options, flat = self.training, self._flat
        gradient = flat.gradients
        if options.weight_decay:
            gradient.add_(flat.parameters, alpha=options.weight_decay)
        if velocity is not None:
            velocity.mul_(options.momentum).add_(gradient)
            gradient = velocity
        flat.parameters.sub_(gradient, alpha=options.lr)

    def gradient(self, parameters: torch.Tensor, client: int) -> torch.Tensor:
        """Return the client's full-batch gradient at `parameters`."""
        self._flat.parameters.copy_(parameters)
        self._flat.gradients.zero_()
        for inputs, targets, share in self._chunks(*self._train[client]):
            (share * self._flat.loss(inputs, targets)).backward()  # type: ignore[no-untyped-call]
        return self._flat.gradients.clone()

    @torch.no_grad()
    def local_loss(self, parameters: torch.Tensor, client: int, *, samples: int = 0, step: int = 0) -> float:
        """Return the client's training loss at `parameters`, on all its data or on some samples drawn in `step`."""
        self._flat.parameters.copy_(parameters)
        inputs, targets = self._train[client]
        if 0 < samples < len(targets):
            rng = stream(self.seed, "probe", step, client)
            chosen = torch.from_numpy(np.sort(rng.choice(len(targets), samples, replace=False)))
            inputs, targets = inputs[chosen], targets[chosen]
        return self._flat.loss(inputs, targets).item()

    @torch.no_grad()
    def moment(self, parameters: torch.Tensor, client: int, *, targets: bool = False) -> FloatArray:
        """Return the factor of the second moment of one batch of the client's features at `parameters`.

        With `targets` it is the moment of the features and the one-hot labels (or regression targets) together.
        """
        self._flat.parameters.copy_(parameters)
        inputs, labels = self._train[client]
        if self.training.moment_samples < len(inputs):
            # The same batch in every round: moments then change because features move, not because samples do.
            chosen = stream(self.seed, "moment", client).choice(
                len(inputs), self.training.moment_samples, replace=False
            )
            rows = torch.from_numpy(np.sort(chosen))
            inputs, labels = inputs[rows], labels[rows]
        features = self._flat.module.features(inputs).numpy().astype(np.float64)
        # A head with a bias sees one more feature, the constant 1.
        bias = self._flat.module.head.bias is not None
        if not targets:
            return factor_from_features(features, bias=bias)
        return factor_from_features(features, bias=bias, labels=labels.numpy(), classes=self.data.classes)

    def evaluate(self, parameters: torch.Tensor) -> tuple[float, float]:
        """Return the metric and the scaled loss of `parameters` on the test data."""
        return self.total(self.score(parameters, chunk) for chunk in range(self.test_chunks))

    @torch.no_grad()
    def score(self, parameters: torch.Tensor, chunk: int) -> TestScore:
        """Judge `parameters` on one part of the test data."""
        self._flat.parameters.copy_(parameters)
        part = slice(chunk * self.chunk, (chunk + 1) * self.chunk)
        inputs, targets = self._test[0][part], self._test[1][part]
        outputs = self._flat.module(inputs)
        correct = int((outputs.argmax(1) == targets).sum()) if self.data.classes is not None else 0
        return TestScore(len(targets), self._flat.criterion(outputs, targets).item() * len(targets), correct)

    def total(self, scores: Iterable[TestScore]) -> tuple[float, float]:
        """Return the metric and the scaled loss from the scores of all parts, in their order."""
        samples, total_loss, correct = 0, 0.0, 0
        for score in scores:
            samples, total_loss, correct = samples + score.samples, total_loss + score.loss, correct + score.correct
        loss = total_loss / samples * self.data.loss_scale
        return (loss if self.data.metric == "loss" else correct / samples), loss

    def _chunks(
        self, inputs: torch.Tensor, targets: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, float]]:
        """Yield pieces that fit into memory, and the share of the samples that each is."""
        size = self._flat.module.chunk
        for start in range(0, len(targets), size):
            part = slice(start, start + size)
            yield inputs[part], targets[part], len(targets[part]) / len(targets)


class Aggregate:
    """Combines the clients' models as they come: `average` sum a_i x_i, `delta` x + sum a_i (x_i - x).

    Summed in double precision, so that the result does not depend on how far x is from 0, and in the order in which
    the models are added.
    """

    def __init__(self, current: torch.Tensor, mode: str) -> None:
        self._current = current
        self._mode = mode
        self._total = torch.zeros(current.shape, dtype=torch.float64)

    def add(self, parameters: torch.Tensor, weight: float) -> None:
        """Add a model."""
        if self._mode == "average":
            self._total.add_(parameters, alpha=weight)
        else:
            self._total.add_(parameters.double() - self._current, alpha=weight)

    def result(self) -> torch.Tensor:
        """Return the new shared model."""
        total = self._total if self._mode == "average" else self._total + self._current
        return total.to(self._current.dtype)


def aggregate(
    current: torch.Tensor, results: Sequence[torch.Tensor], weights: Sequence[float], mode: str
) -> torch.Tensor:
    """Combine the clients' models, in cohort order, as `Aggregate` does."""
    combined = Aggregate(current, mode)
    for parameters, weight in zip(results, weights, strict=True):
        combined.add(parameters, weight)
    return combined.result()


def _tensors(samples: Samples) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(np.ascontiguousarray(samples.inputs)), torch.from_numpy(
        np.ascontiguousarray(samples.targets)
    )
