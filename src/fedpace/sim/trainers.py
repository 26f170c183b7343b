"""What the simulator asks of whoever trains its clients, and what all of them have in common.

Two implement it: `Trainer` computes with torch, and trains every model; `NumpyTrainer` computes with NumPy, and trains
models of linear layers. Models, gradients and what a server step remembers are then tensors with the one and arrays
with the other; whoever handles them in between uses operators that both understand.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import FloatArray
from fedpace._base.errors import MissingExtraError
from fedpace._base.rng import stream
from fedpace.core.stepping import Vector
from fedpace.data.federated import FederatedData
from fedpace.models.base import LinearLayers, ModelConfig
from fedpace.moments.factor import whole_rows
from fedpace.sim.minibatches import IntArray
from fedpace.sim.releasing import released
from fedpace.sim.training import LocalResult, Training


@dataclass(frozen=True)
class TestScore:
    """How the shared model does on a part of the test data."""

    __test__ = False  # pytest takes the name for a test's

    samples: int
    loss: float
    """Summed over the samples."""
    correct: int


class AnyTrainer(ABC):
    """The clients' data and model, and what each of them does with a model that it is given.

    Everything random is keyed by (seed, step, client), so that a client's work does not depend on who else is in the
    cohort, nor on the order in which the cohort is worked through, nor on what it is computed with.
    """

    initial: Vector
    """The model that every run of the seed starts from."""
    trainable: int
    """Entries of a model that are trained; those behind them are buffers."""
    chunk: int
    """Test samples that are judged at once."""
    moving_features: bool
    """Whether training moves the features that moments are made of."""
    stackable: bool
    """Whether many clients are trained at once, their models stacked."""
    largest_part: int
    """Clients in a piece at the most."""

    def __init__(self, data: FederatedData, model: ModelConfig, training: Training, *, seed: int) -> None:
        self.data = data
        self.model = model
        self.training = training
        self.seed = seed
        self._counts = [len(samples) for samples in data.train]

    # -- what they differ in -----------------------------------------------------------------------------------

    @abstractmethod
    def named(self, parameters: Vector) -> dict[str, Vector]:
        """Return `parameters` by the names that they have in the model's module."""

    @abstractmethod
    def zeros(self, length: int, *, double: bool = False) -> Vector:
        """Return zeros in single precision, as models are, or in double."""

    @abstractmethod
    def table(self, rows: Sequence[Vector]) -> Vector:
        """Return vectors as the rows of one table."""

    @abstractmethod
    def own(self, array: NDArray[np.generic]) -> Vector:
        """Return a copy of an array as what is computed with."""

    @abstractmethod
    def buffers(self, parameters: Vector) -> Vector:
        """Return a copy of what lies behind the trained entries."""

    @abstractmethod
    def next_model(self, stepped: Vector, before: Vector, buffers: Iterable[tuple[Vector, float]]) -> Vector:
        """Return the model after a server step: `stepped` are its parameters, `buffers` what clients sent, weighted."""

    @abstractmethod
    def to_bytes(self, tensors: Mapping[str, Vector]) -> bytes:
        """Return named tensors in the format of safetensors."""

    @abstractmethod
    def from_bytes(self, content: bytes) -> dict[str, Vector]:
        """Read what `to_bytes` wrote."""

    @abstractmethod
    def parts(self, clients: Sequence[int]) -> list[tuple[int, ...]]:
        """Cut a cohort into pieces that are worked on at once, always the same way."""

    @abstractmethod
    def train_many(
        self,
        parameters: Vector,
        clients: Sequence[int],
        step: int | Sequence[int],
        corrections: Vector | None = None,
    ) -> list[LocalResult]:
        """Train each of `clients` from `parameters`; row i of `corrections` is added to every gradient of the i-th.

        `parameters` may be a row each, and `step` a turn each: whoever trains other versions can be trained together.
        """

    @abstractmethod
    def gradients(self, parameters: Vector, clients: Sequence[int]) -> list[Vector]:
        """Return the clients' full-batch gradients at `parameters`."""

    @abstractmethod
    def local_losses(
        self, parameters: Vector, clients: Sequence[int], *, samples: int = 0, step: int = 0
    ) -> list[float]:
        """Return the clients' training losses at `parameters`, on all their data or on some samples drawn in `step`."""

    @abstractmethod
    def moment(self, parameters: Vector, client: int, *, targets: bool = False) -> FloatArray:
        """Return the factor of the second moment of one batch of the client's features at `parameters`.

        With `targets` it is the moment of the features and the one-hot labels (or regression targets) together.
        """

    @abstractmethod
    def score(self, parameters: Vector, chunk: int) -> TestScore:
        """Judge `parameters` on one part of the test data."""

    @abstractmethod
    def judge(self, parameters: Vector, inputs: Vector, targets: Vector) -> TestScore:
        """Judge `parameters` on some samples."""

    @abstractmethod
    def correct(self, parameters: Vector, inputs: Vector, targets: Vector) -> Vector:
        """Return of which samples `parameters` tell the class."""

    # -- what they share ---------------------------------------------------------------------------------------

    @property
    def message_bytes(self) -> int:
        """Bytes that travel each way in a round: the model, and for SCAFFOLD its control variate too."""
        return int(self.initial.nbytes) * (2 if self.training.algorithm == "scaffold" else 1)

    @property
    def test_chunks(self) -> int:
        """Parts that the test data are judged in."""
        return math.ceil(len(self.data.test) / self.chunk)

    def samples(self, client: int) -> int:
        """Return how many samples the client holds."""
        return self._counts[client]

    def train(self, parameters: Vector, client: int, step: int, correction: Vector | None = None) -> LocalResult:
        """Train `client` from `parameters` and return where it ended; `correction` is added to every gradient."""
        return self.train_many(parameters, [client], step, None if correction is None else correction[None])[0]

    def gradient(self, parameters: Vector, client: int) -> Vector:
        """Return the client's full-batch gradient at `parameters`."""
        return self.gradients(parameters, [client])[0]

    def local_loss(self, parameters: Vector, client: int, *, samples: int = 0, step: int = 0) -> float:
        """Return the client's training loss at `parameters`, on all its data or on some samples drawn in `step`."""
        return self.local_losses(parameters, [client], samples=samples, step=step)[0]

    def evaluate(self, parameters: Vector) -> tuple[float, float]:
        """Return the metric and the scaled loss of `parameters` on the test data."""
        return self.total(self.score(parameters, chunk) for chunk in range(self.test_chunks))

    def total(self, scores: Iterable[TestScore]) -> tuple[float, float]:
        """Return the metric and the scaled loss from the scores of all parts, in their order."""
        samples, total_loss, correct = 0, 0.0, 0
        for score in scores:
            samples, total_loss, correct = samples + score.samples, total_loss + score.loss, correct + score.correct
        loss = total_loss / samples * self.data.loss_scale
        return (loss if self.data.metric == "loss" else correct / samples), loss

    def _probed(self, client: int, samples: int, step: int) -> IntArray | None:
        """Return the samples that a probe of `samples` looks at; None = all of them."""
        count = self.samples(client)
        if not 0 < samples < count:
            return None
        return np.sort(stream(self.seed, "probe", step, client).choice(count, samples, replace=False))

    def _measured(self, client: int) -> IntArray | None:
        """Return the samples that a moment is made of; None = all of them.

        The same in every round: moments then change because features move, not because samples do.
        """
        count, most = self.samples(client), self.training.moment_samples
        if most >= count:
            return None
        return np.sort(stream(self.seed, "moment", client).choice(count, most, replace=False))

    def _released(
        self, features: FloatArray, labels: NDArray[np.generic] | None, parameters: Vector, client: int, *, bias: bool
    ) -> FloatArray:
        """Return the factor of a moment as it leaves the client; a head with a bias sees one more feature, a 1."""
        classes = None if labels is None else self.data.classes
        rows = whole_rows(features, bias=bias, labels=labels, classes=classes)
        return released(rows, self.training, np.asarray(parameters), client, seed=self.seed)


def trainer_for(data: FederatedData, model: ModelConfig, training: Training, *, seed: int) -> AnyTrainer:
    """Return who trains `model` on `data`, with the arithmetic that is asked for: only that is loaded."""
    if training.arithmetic == "numpy":
        from fedpace.sim.numpy_trainer import NumpyTrainer

        return NumpyTrainer(data, model, training, seed=seed)
    try:
        from fedpace.sim.trainer import Trainer
    except ModuleNotFoundError as cause:
        if cause.name != "torch":
            raise
        instead = (
            f'NumPy trains {model.name} too: --arithmetic numpy, in a file arithmetic = "numpy" under [training], in '
            'Python training=fedpace.sim.training.Training(arithmetic="numpy")'
            if isinstance(model, LinearLayers)
            else "NumPy trains only linear, mlp and softmax"
        )
        raise MissingExtraError(f"training {model.name}", "sim", "torch", instead) from cause
    return Trainer(data, model, training, seed=seed)
