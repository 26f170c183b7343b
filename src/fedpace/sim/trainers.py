"""The base class of trainers (`Trainer`), which compute the clients' work, and `trainer_for`, which picks one.

There are two trainers: `TorchTrainer` computes with torch and trains every model; `NumpyTrainer` computes with NumPy
and trains models of linear layers. Models, gradients and the server's state are torch tensors or NumPy arrays
accordingly. Code between them uses only operators that both types support.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import FloatArray
from fedpace._base.errors import MissingExtraError
from fedpace._base.rng import stream
from fedpace.core.server_rule import Vector
from fedpace.data.federated import FederatedData
from fedpace.models.contract import LinearLayers, ModelConfig
from fedpace.moments.factor import compress, moment_rows, private_moment
from fedpace.sim.training import IntArray, LocalResult, Training


@dataclass(frozen=True)
class TestScore:
    """Score of the shared model on a part of the test data."""

    __test__ = False  # keeps pytest from collecting the class

    samples: int
    loss: float
    """Sum over the samples."""
    correct: int
    outputs: Any = None
    """Outputs of the model, for a user's metric."""
    targets: Any = None


class Trainer(ABC):
    """The clients' data and model, and the computations of a client: training, gradients, losses, moments.

    Every random draw is keyed by (seed, step, client). So a client's result depends neither on the rest of the cohort,
    nor on the order of computation, nor on the engine.
    """

    initial: Vector
    """The initial model, the same for every run with this seed."""
    trainable: int
    """Number of trained entries of a model vector; the entries after them are buffers."""
    chunk: int
    """Test samples evaluated at once."""
    moving_features: bool
    """Whether training changes the features from which moments are computed."""
    stackable: bool
    """Whether many clients are trained at once, with their models stacked into one array."""
    max_part_clients: int
    """Most clients in one part of a cohort (see `parts`)."""
    device_kind: str = "cpu"
    """Kind of device that computes: `cpu`, `cuda` or `mps`."""
    device_name: str = "cpu"
    """The device, and the precision if it is not float32."""
    gpus: int = 1
    """Number of devices that worker processes share."""
    own_metric: Callable[[Sequence[TestScore]], float] | None = None
    """The user's metric, from the scores of all chunks; None = the metric of the data."""

    def __init__(self, data: FederatedData, model: ModelConfig, training: Training, *, seed: int) -> None:
        self.data = data
        self.model = model
        self.training = training
        self.seed = seed
        self.counts = [len(samples) for samples in data.train]
        """Number of training samples of each client."""

    # -- implemented by each trainer ---------------------------------------------------------------------------

    @abstractmethod
    def named_tensors(self, parameters: Vector) -> dict[str, Vector]:
        """Split `parameters` into tensors, named as in the model's torch module."""

    @abstractmethod
    def zeros(self, length: int, *, double: bool = False) -> Vector:
        """Return a vector of zeros in single precision, like models, or in double precision."""

    @abstractmethod
    def stack_rows(self, rows: Sequence[Vector]) -> Vector:
        """Return a matrix with these vectors as rows."""

    @abstractmethod
    def to_native(self, array: NDArray[np.generic]) -> Vector:
        """Return a copy of `array` in the trainer's own type, a torch tensor or a NumPy array."""

    @abstractmethod
    def buffers(self, parameters: Vector) -> Vector:
        """Return a copy of the buffers of a model vector, the entries after the trained ones."""

    @abstractmethod
    def next_model(self, stepped: Vector, before: Vector, buffers: Iterable[tuple[Vector, float]]) -> Vector:
        """Return the model after a server step.

        `stepped` are the new parameters, `before` is the model before the step, and `buffers` are the clients' buffers
        with their weights.
        """

    @abstractmethod
    def to_bytes(self, tensors: Mapping[str, Vector]) -> bytes:
        """Serialize named tensors in the safetensors format."""

    @abstractmethod
    def from_bytes(self, content: bytes) -> dict[str, Vector]:
        """Read what `to_bytes` wrote."""

    @abstractmethod
    def split_cohort(self, clients: Sequence[int]) -> list[tuple[int, ...]]:
        """Cut a cohort into parts that are computed at once; the same cohort is always cut in the same way."""

    @abstractmethod
    def train_many(
        self,
        parameters: Vector,
        clients: Sequence[int],
        step: int | Sequence[int],
        corrections: Vector | None = None,
        work: Sequence[float] | None = None,
    ) -> list[LocalResult]:
        """Train each of `clients` from `parameters`; row i of `corrections` is added to every gradient of client i.

        `work` are multiples of the configured local training, in units of local steps, at least one step; None = 1. A
        fraction ends within an epoch, a multiple continues with further epochs.

        To train clients on different versions of the model together, pass one row of `parameters` and one `step` per
        client.
        """

    @abstractmethod
    def gradients(self, parameters: Vector, clients: Sequence[int]) -> list[Vector]:
        """Return the clients' full-batch gradients at `parameters`."""

    @abstractmethod
    def local_losses(
        self, parameters: Vector, clients: Sequence[int], *, samples: int = 0, step: int = 0
    ) -> list[float]:
        """Return the clients' training losses at `parameters`.

        They are computed on all data of a client, or on `samples` of them drawn with key `step`.
        """

    @abstractmethod
    def moment(self, parameters: Vector, client: int, *, targets: bool = False) -> FloatArray:
        """Return a factor of the second moment of the client's features at `parameters`, computed from one batch.

        With `targets` it is the joint moment of the features and the one-hot labels (or regression targets).
        """

    @abstractmethod
    def score_chunk(self, parameters: Vector, chunk: int) -> TestScore:
        """Evaluate `parameters` on one chunk of the test data."""

    @abstractmethod
    def score_samples(self, parameters: Vector, samples: Iterable[tuple[Vector, Vector]]) -> list[TestScore]:
        """Evaluate `parameters` on each batch of inputs and targets."""

    @abstractmethod
    def correct(self, parameters: Vector, inputs: Vector, targets: Vector) -> Vector:
        """Return for each sample whether `parameters` predict its class correctly."""

    # -- shared by all trainers --------------------------------------------------------------------------------

    @property
    def message_bytes(self) -> int:
        """Bytes of one message in either direction: the model, and with SCAFFOLD also a control variate."""
        return int(self.initial.nbytes) * (2 if self.training.algorithm == "scaffold" else 1)

    @property
    def test_chunks(self) -> int:
        """Number of chunks of the test data."""
        return math.ceil(len(self.data.test) / self.chunk)

    def train(self, parameters: Vector, client: int, step: int, correction: Vector | None = None) -> LocalResult:
        """Train one client from `parameters` and return the result; `correction` is added to every gradient."""
        return self.train_many(parameters, [client], step, None if correction is None else correction[None])[0]

    def gradient(self, parameters: Vector, client: int) -> Vector:
        """Return the client's full-batch gradient at `parameters`."""
        return self.gradients(parameters, [client])[0]

    def evaluate(self, parameters: Vector) -> tuple[float, float]:
        """Return the metric and the scaled loss of `parameters` on the test data."""
        return self.total_score(self.score_chunk(parameters, chunk) for chunk in range(self.test_chunks))

    def metrics_on(self, parameters: Vector, groups: Iterable[tuple[Vector, Vector]]) -> list[float]:
        """Return the metric of `parameters` on each group of inputs and targets, which are evaluated in chunks."""
        chunks = [
            [(inputs[at : at + self.chunk], targets[at : at + self.chunk]) for at in range(0, len(targets), self.chunk)]
            for inputs, targets in groups
        ]
        scores = iter(self.score_samples(parameters, chain.from_iterable(chunks)))
        return [self.total_score(islice(scores, len(group)))[0] for group in chunks]

    def total_score(self, scores: Iterable[TestScore]) -> tuple[float, float]:
        """Return the metric and the scaled loss from the scores of all chunks, in order."""
        held = list(scores)
        samples, total_loss, correct = 0, 0.0, 0
        for score in held:
            samples, total_loss, correct = samples + score.samples, total_loss + score.loss, correct + score.correct
        loss = total_loss / samples * self.data.loss_scale
        if self.own_metric is not None:
            return self.own_metric(held), loss
        return (loss if self.data.metric == "loss" else correct / samples), loss

    def _probe_rows(self, client: int, samples: int, step: int) -> IntArray | None:
        """Return the rows of the client's data that a probe of `samples` samples uses; None = all."""
        count = self.counts[client]
        if not 0 < samples < count:
            return None
        return np.sort(stream(self.seed, "probe", step, client).choice(count, samples, replace=False))

    def _moment_rows(self, client: int) -> IntArray | None:
        """Return the rows of the client's data from which its moment is computed; None = all.

        They are the same in every round, so a moment changes only because the features change.
        """
        count, most = self.counts[client], self.training.moment_samples
        if most >= count:
            return None
        return np.sort(stream(self.seed, "moment", client).choice(count, most, replace=False))

    def _prepared_moment(
        self, features: FloatArray, labels: NDArray[np.generic] | None, parameters: Vector, client: int, *, bias: bool
    ) -> FloatArray:
        """Return the factor of a moment as the client sends it; with `bias` the features get a constant 1."""
        classes = None if labels is None else self.data.classes
        rows = moment_rows(features, bias=bias, labels=labels, classes=classes)
        return prepare_moment(rows, self.training, np.asarray(parameters), client, seed=self.seed)


def trainer_for(data: FederatedData, model: ModelConfig, training: Training, *, seed: int) -> Trainer:
    """Return a trainer of `model` on `data`: NumPy if `training.arithmetic` says so, else torch.

    Only the library that is used is imported.
    """
    if training.arithmetic == "numpy":
        from fedpace.sim.numpy_trainer import NumpyTrainer

        return NumpyTrainer(data, model, training, seed=seed)
    try:
        from fedpace.sim.torch_trainer import TorchTrainer
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
    return TorchTrainer(data, model, training, seed=seed)


def prepare_moment(
    rows: FloatArray, training: Training, model: NDArray[np.generic], client: int, *, seed: int
) -> FloatArray:
    """Return the factor of the moment that a client sends, private if `training.moment_epsilon` is set.

    The noise is keyed by the model. A client that is asked twice about the same model sends the same answer, which
    costs no privacy budget. Each new model is a new release.
    """
    rank = training.moment_rank or None
    if not training.moment_epsilon:
        return compress(rows / np.sqrt(len(rows)), rank or rows.shape[1], samples=len(rows)).factor
    name = int.from_bytes(hashlib.sha256(np.ascontiguousarray(model).tobytes()).digest()[:6], "big")
    return private_moment(
        rows,
        epsilon=training.moment_epsilon,
        delta=training.moment_delta,
        clip=training.moment_clip,
        seed=int(stream(seed, "release", client, name).integers(2**62)),
        max_rank=rank,
    ).factor
