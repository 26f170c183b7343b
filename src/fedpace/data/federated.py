"""`FederatedData`, the samples of all clients, which every data set here returns; `DataConfig` is its configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedpace._base.errors import InputError

Better = Literal["higher", "lower"]


class MeasuredData:
    """A data set whose runs are judged by a user's metric.

    Args:
        config: the data set.
        metric: name of the metric.
        better: whether `higher` or `lower` is better.
    """

    def __init__(self, config: DataConfig, metric: str, better: Better) -> None:
        self.config, self.metric = config, metric
        self.direction: Literal["up", "down"] = "up" if better == "higher" else "down"

    @property
    def name(self) -> str:
        """Registered name of the data set."""
        return self.config.name

    def build(self, *, seed: int) -> FederatedData:
        """Return the data of `seed`."""
        return self.config.build(seed=seed)


Metric = Literal["accuracy", "loss"]


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs (n, ...), float32 or uint8 character numbers, and targets: (n,) int64 classes or float32 values."""

    inputs: NDArray[Any]
    targets: NDArray[Any]

    def __post_init__(self) -> None:
        """Raise if the lengths differ or a number is not finite."""
        if len(self.inputs) != len(self.targets):
            raise InputError(f"{len(self.inputs)} inputs came with {len(self.targets)} targets")
        for what, values in (("inputs", self.inputs), ("targets", self.targets)):
            if not np.isfinite(values).all():
                raise InputError(f"the {what} must be finite, but some are NaN or infinite")

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.inputs)


@dataclass(frozen=True, eq=False)
class FederatedData:
    """The clients' training data, and the test data of the shared model."""

    name: str
    train: tuple[Samples, ...]
    """Training data, one entry per client."""
    test: Samples
    """The union of the clients' test data."""
    classes: int | None
    """Number of classes; None for regression."""
    metric: Metric
    """The metric of targets and curves: accuracy (more is better) or loss (less is better)."""
    loss_scale: float = 1.0
    """Factor between the plain test loss and the reported one."""
    test_sizes: tuple[int, ...] | None = None
    """Number of test samples of each client, in the order of `test`; None if test samples belong to no client."""
    names: tuple[str, ...] | None = None
    """Names of the clients; None = their numbers."""

    def __post_init__(self) -> None:
        """Raise if there are no clients or test samples, if a client has no samples, or if sizes do not fit."""
        if not self.train:
            raise InputError(f"{self.name} has no clients")
        if len(self.test) == 0:
            raise InputError(f"{self.name} has no test samples: nothing could be measured; hold out more")
        for client, samples in enumerate(self.train):
            if len(samples) == 0:
                raise InputError(
                    f"client {client} of {self.name} holds no samples: use fewer clients or a milder split"
                )
        if self.test_sizes is not None and (
            len(self.test_sizes) != len(self.train) or sum(self.test_sizes) != len(self.test)
        ):
            raise InputError(
                f"{self.name} has {len(self.train)} clients and {len(self.test)} test samples, but test_sizes names "
                f"{len(self.test_sizes)} clients and {sum(self.test_sizes)} samples"
            )

        if self.names is not None and len(self.names) != len(self.train):
            raise InputError(f"{self.name} has {len(self.train)} clients, but names of {len(self.names)}")

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.train)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.test.inputs.shape[1:])

    @property
    def outputs(self) -> int:
        """Number of outputs that a model needs."""
        return 1 if self.classes is None else self.classes

    def label_histograms(self) -> NDArray[np.float64] | None:
        """Return the samples per client and class, (clients, classes); None for regression."""
        if self.classes is None:
            return None
        return np.array([np.bincount(s.targets, minlength=self.classes) for s in self.train], dtype=np.float64)


class DataConfig(Protocol):
    """A named data set before it is built: a frozen dataclass whose fields are its options."""

    name: ClassVar[str]

    @property
    def metric(self) -> Metric:
        """Metric of the runs; a class variable if it does not depend on the options."""

    def build(self, *, seed: int) -> FederatedData:
        """Return the data of `seed`."""


@dataclass(frozen=True)
class DataSummary:
    """The numbers that `fedpace data show` prints."""

    clients: int
    train: int
    test: int
    smallest: int
    """Fewest training samples of a client."""
    median: float
    largest: int
    input_shape: tuple[int, ...]
    classes: int | None
    """Number of classes; None for regression."""
    classes_held: tuple[int, float, int] | None
    """Number of classes per client: fewest, mean, most."""
    skew: float | None
    """Mean total-variation distance of a client's label mix from the mix of all: 0 = equal, towards 1 = disjoint."""

    def rows(self) -> list[tuple[str, str]]:
        """Return (name, value) pairs as text."""
        shown = [
            ("clients", f"{self.clients:,}"),
            ("training samples", f"{self.train:,}"),
            ("a client's: fewest / median / most", f"{self.smallest:,} / {self.median:,.0f} / {self.largest:,}"),
            ("test samples, all clients'", f"{self.test:,}"),
            ("input", " x ".join(map(str, self.input_shape))),
        ]
        if self.classes is None or self.classes_held is None or self.skew is None:
            return [*shown, ("classes", "none: regression")]
        fewest, mean, most = self.classes_held
        return [
            *shown,
            ("classes", str(self.classes)),
            ("held by a client: fewest / mean / most", f"{fewest} / {mean:.1f} / {most}"),
            ("label skew (0 equal, 1 disjoint)", f"{self.skew:.3f}"),
        ]


def summarise(data: FederatedData) -> DataSummary:
    """Return the summary of a data set."""
    sizes = np.array([len(samples) for samples in data.train])
    histograms = data.label_histograms()
    held, skew = None, None
    if histograms is not None:
        counts = (histograms > 0).sum(axis=1)
        held = (int(counts.min()), float(counts.mean()), int(counts.max()))
        mixes = histograms / histograms.sum(axis=1, keepdims=True)
        overall = histograms.sum(axis=0) / histograms.sum()
        skew = float(np.abs(mixes - overall).sum(axis=1).mean() / 2)
    return DataSummary(
        clients=data.clients,
        train=int(sizes.sum()),
        test=len(data.test),
        smallest=int(sizes.min()),
        median=float(np.median(sizes)),
        largest=int(sizes.max()),
        input_shape=data.input_shape,
        classes=data.classes,
        classes_held=held,
        skew=skew,
    )
