"""`LabelledImages`, the base class of image data sets: it splits train and test images by one of four partitions.

The test images are split like the training images: a client's test set has the same label mix, the same rotation and
the same share of the images. The shared model is evaluated on the union of the test sets.

`OwnedRows` is the base class of data sets whose rows have owners, such as writers, which become clients.

The functions split samples over clients: Dirichlet, iid and power-law partitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import above, at_least, finite
from fedpace._base.errors import InputError
from fedpace._base.options import FINITE, Above, AtLeast, Between, Options
from fedpace._base.rng import stream
from fedpace.data import hub
from fedpace.data.federated import FederatedData, Metric, Samples

if TYPE_CHECKING:
    from scipy import sparse


Parts = list[NDArray[np.int64]]
"""Sorted sample indices, one array per client."""


def dirichlet_partition(labels: NDArray[np.int64], clients: int, alpha: float, rng: np.random.Generator) -> Parts:
    """Split sample indices so that each client's label mix is drawn from Dirichlet(alpha).

    All clients get the same number of samples (within one), drawn without replacement by the client's label mix, as in
    the paper ("we sample the fraction of labels on each client from a Dirichlet"). When a class runs out, its fraction
    moves to the remaining classes, so every sample is used exactly once.
    """
    _check_alpha(alpha)
    stock = _stock(labels, clients, rng)
    return _deal(stock, rng.dirichlet(np.full(len(stock), alpha), size=clients), rng)


def dirichlet_split(
    train: NDArray[np.int64], test: NDArray[np.int64], clients: int, alpha: float, rng: np.random.Generator
) -> tuple[Parts, Parts]:
    """Split train and test labels like `dirichlet_partition`, with the same label mix per client for both."""
    _check_alpha(alpha)
    stocks = [_stock(labels, clients, rng) for labels in (train, test)]
    mixes = rng.dirichlet(np.full(max(map(len, stocks)), alpha), size=clients)
    dealt = [_deal(stock, mixes[:, : len(stock)], rng) for stock in stocks]
    return dealt[0], dealt[1]


def iid_partition(samples: int, clients: int, rng: np.random.Generator) -> Parts:
    """Split sample indices at random into equal parts, within one."""
    return sized_partition(samples, np.full(clients, 1 / max(clients, 1)), rng)


def power_law_shares(clients: int, exponent: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the clients' shares of the samples, proportional to rank^-exponent, in random order."""
    at_least(clients, 1, "clients of the power law")
    at_least(exponent, 0, "exponent of the power law")
    finite(exponent, "exponent of the power law")
    shares = np.arange(1, clients + 1, dtype=np.float64) ** -exponent
    return rng.permutation(shares / shares.sum())


def sized_partition(samples: int, shares: NDArray[np.float64], rng: np.random.Generator) -> Parts:
    """Split sample indices at random into parts of these shares, at least one sample each."""
    clients = len(shares)
    _check_samples(samples, clients)
    # One sample each, then the rest by largest remainders, so that the sizes sum to the number of samples.
    exact = shares * (samples - clients)
    sizes = np.floor(exact).astype(np.int64) + 1
    short = samples - int(sizes.sum())
    sizes[np.argsort(np.floor(exact) - exact, kind="stable")[:short]] += 1
    return [np.sort(part) for part in np.split(rng.permutation(samples), np.cumsum(sizes)[:-1])]


def _check_alpha(alpha: float) -> None:
    above(alpha, 0, "alpha of the Dirichlet split")
    finite(alpha, "alpha of the Dirichlet split")


def _check_samples(samples: int, clients: int) -> None:
    if not 1 <= clients <= samples:
        raise InputError(f"{samples} samples cannot be split over {clients} clients: each needs at least one")


def _stock(labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> list[list[int]]:
    """Return each class's sample indices in random order."""
    _check_samples(labels.size, clients)
    if labels.min() < 0:
        raise InputError(f"labels must be classes, 0 and above, but {labels.min()} came")
    classes = int(labels.max()) + 1
    return [rng.permutation(np.flatnonzero(labels == label)).tolist() for label in range(classes)]


def _deal(stock: list[list[int]], mixes: NDArray[np.float64], rng: np.random.Generator) -> Parts:
    """Distribute all samples: in each turn, every client draws one sample by its label mix."""
    samples, clients = sum(map(len, stock)), len(mixes)
    quota = np.full(clients, samples // clients)
    quota[: samples % clients] += 1
    parts: list[list[int]] = [[] for _ in range(clients)]
    left = np.array([len(items) > 0 for items in stock])
    # A new random order in each turn, so that no client always draws last.
    for turn in range(int(quota.max())):
        for client in rng.permutation(clients).tolist():
            if turn >= quota[client]:
                continue
            chances = np.where(left, mixes[client], 0.0)
            if chances.sum() <= 0:
                chances = left.astype(np.float64)
            # The same draw as `rng.choice`, without its slow checks.
            cumulative = (chances / chances.sum()).cumsum()
            label = int((cumulative / cumulative[-1]).searchsorted(rng.random(), side="right"))
            parts[client].append(stock[label].pop())
            left[label] = len(stock[label]) > 0
    return [np.sort(np.array(part, dtype=np.int64)) for part in parts]


Rows = NDArray[np.int64]


@dataclass(frozen=True)
class OwnedRows(Options):
    """A data set whose rows have owners; the subclasses document the fields."""

    name: ClassVar[str]
    metric: ClassVar[Metric] = "accuracy"

    clients: Annotated[int, AtLeast(0)] = 100
    partition: Literal["natural", "iid"] = "natural"
    min_samples: Annotated[int, AtLeast(2)] = 100
    test_fraction: Annotated[float, Between(0, 1, "()")] = 0.1
    folder: str = ""

    def hold_out(self, rows: Rows, rng: np.random.Generator) -> tuple[Rows, Rows]:
        """Return an owner's training rows and its test rows."""
        raise NotImplementedError

    def prepared(self, inputs: NDArray[np.uint8]) -> NDArray[Any]:
        """Convert stored inputs to model inputs."""
        raise NotImplementedError

    def build(self, *, seed: int) -> FederatedData:
        """Return the data of `seed`, which draws the clients."""
        decoded = hub.load(self.name, self.folder)
        rows = decoded.splits["train"]
        held = self.held(rows.owners, seed)
        trains, tests = [train for train, _ in held], [test for _, test in held]
        if self.partition == "iid":
            rng = stream(seed, "data", self.name, "partition")
            trains, tests = _dealt(trains, rng), _dealt(tests, rng)
        for train in trains:
            if train.size == 0:
                raise InputError(f"a client of {self.name} would hold no training rows: raise min_samples")
        tested = np.concatenate(tests)
        return FederatedData(
            name=self.name,
            train=tuple(Samples(self.prepared(rows.inputs[own]), rows.labels[own]) for own in trains),
            test=Samples(self.prepared(rows.inputs[tested]), rows.labels[tested]),
            classes=decoded.source.classes,
            metric=self.metric,
            test_sizes=tuple(len(test) for test in tests),
        )

    def held(self, owners: Rows | None, seed: int, *, everybody: bool = False) -> list[tuple[Rows, Rows]]:
        """Return training and test rows of the owners that take part: `clients` of them, or all eligible owners."""
        if owners is None:
            raise InputError(f"{self.name} does not say whose its rows are")
        return [
            self.hold_out(own, stream(seed, "data", self.name, "test", owner))
            for owner, own in self._owners(owners, seed, 0 if everybody else self.clients)
        ]

    def _owners(self, owners: Rows, seed: int, clients: int) -> list[tuple[int, Rows]]:
        """Draw the owners that take part from those with enough rows; return each with its rows."""
        counts = np.bincount(owners)
        eligible = np.flatnonzero(counts >= self.min_samples)
        wanted = clients or len(eligible)
        if wanted > len(eligible) or not len(eligible):
            raise InputError(
                f"{wanted} clients of {self.name} were asked for, but only {len(eligible)} of its {len(counts)} have "
                f"min_samples = {self.min_samples} rows or more: lower one of the two"
            )
        chosen = np.sort(stream(seed, "data", self.name, "owners").choice(eligible, wanted, replace=False))
        # Rows of one owner need not be adjacent, but they keep their order.
        order = np.argsort(owners, kind="stable")
        starts = np.concatenate([[0], np.cumsum(counts)])
        return [(int(owner), order[starts[owner] : starts[owner + 1]]) for owner in chosen]


def _dealt(parts: list[Rows], rng: np.random.Generator) -> list[Rows]:
    """Pool the rows and distribute them evenly at random."""
    pooled = np.concatenate(parts)
    return [pooled[part] for part in iid_partition(len(pooled), len(parts), rng)]


def rotate(images: NDArray[np.float32], degrees: float) -> NDArray[np.float32]:
    """Rotate images (n, channels, height, width) counter-clockwise; pixels from outside the image are 0."""
    if degrees == 0:
        return images
    count, channels, height, width = images.shape
    flat = images.reshape(count * channels, height * width)
    rotated = (_rotation(height, width, degrees) @ flat.T).T
    return np.ascontiguousarray(rotated, dtype=np.float32).reshape(images.shape)


def _rotation(height: int, width: int, degrees: float) -> sparse.csr_matrix:
    """Return the matrix that maps the pixels of an image to those of the rotated image."""
    from scipy import sparse  # imported here, so that importing a data set stays fast

    row, column = (grid.ravel() for grid in np.mgrid[:height, :width].astype(np.float64))
    middle_row, middle_column = (height - 1) / 2, (width - 1) / 2
    cosine, sine = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    # Source of each pixel: its position rotated back. Row numbers grow downwards.
    from_row = middle_row + cosine * (row - middle_row) + sine * (column - middle_column)
    from_column = middle_column - sine * (row - middle_row) + cosine * (column - middle_column)
    top, left = np.floor(from_row).astype(np.int64), np.floor(from_column).astype(np.int64)
    below, right = from_row - top, from_column - left
    target = np.arange(height * width)
    entries = []
    for down, across, weight in (
        (0, 0, (1 - below) * (1 - right)),
        (0, 1, (1 - below) * right),
        (1, 0, below * (1 - right)),
        (1, 1, below * right),
    ):
        y, x = top + down, left + across
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        entries.append((weight[inside], target[inside], y[inside] * width + x[inside]))
    weights, rows, columns = (np.concatenate(part) for part in zip(*entries, strict=True))
    shape = (height * width, height * width)
    return sparse.csr_matrix((weights.astype(np.float32), (rows, columns)), shape=shape)


Kind = Literal["dirichlet", "rotated", "iid", "power-law"]


def unit_interval(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Scale pixels to [0, 1]."""
    return np.divide(pixels, np.float32(255), dtype=np.float32)


def standardised(
    pixels: NDArray[np.float32], mean: tuple[float, ...], deviation: tuple[float, ...]
) -> NDArray[np.float32]:
    """Return (pixels - mean) / deviation, channel by channel, of images (n, channels, height, width)."""
    centre, spread = (np.array(value, dtype=np.float32)[:, None, None] for value in (mean, deviation))
    scaled: NDArray[np.float32] = (pixels - centre) / spread
    return scaled


@dataclass(frozen=True)
class LabelledImages(Options):
    """Labelled images over clients.

    Args:
        clients: number of clients.
        partition: `dirichlet` (each client's label mix is drawn), `rotated` (equal mixes, each client's images rotated
            by its own angle), `iid`, or `power-law` (equal mixes, unequal sizes).
        alpha: Dirichlet concentration; small = few classes per client.
        max_rotation: degrees; a client's angle is drawn from U[0, max_rotation].
        exponent: exponent of the power law; the client of rank r holds a share proportional to r^-exponent.
        samples: training images to use, drawn at random; 0 = all.
        test_samples: test images to use; 0 = all.
        folder: folder of parquet files; "" = $FEDPACE_DATA, else the Hub.
    """

    name: ClassVar[str]
    metric: ClassVar[Metric] = "accuracy"
    mean: ClassVar[tuple[float, ...]]
    """Mean of the training pixels in [0, 1] per channel; inputs are (pixel - mean) / deviation."""
    deviation: ClassVar[tuple[float, ...]]

    clients: Annotated[int, AtLeast(1)] = 100
    partition: Kind = "dirichlet"
    alpha: Annotated[float, Above(0), FINITE] = 2.0
    max_rotation: Annotated[float, AtLeast(0), FINITE] = 45.0
    exponent: Annotated[float, AtLeast(0), FINITE] = 1.0
    samples: Annotated[int, AtLeast(0)] = 0
    test_samples: Annotated[int, AtLeast(0)] = 0
    folder: str = ""

    def build(self, *, seed: int) -> FederatedData:
        """Return the data of `seed`, which draws the partition."""
        decoded = hub.load(self.name, self.folder)
        rows = {
            split: self._chosen(len(decoded.splits[split]), wanted, seed, split)
            for split, wanted in (("train", self.samples), ("test", self.test_samples))
        }
        labels = {split: decoded.splits[split].labels[chosen] for split, chosen in rows.items()}
        train_parts, test_parts = self._split(labels["train"], labels["test"], seed)
        angles = self.angles(seed)

        def samples(split: str, part: NDArray[np.int64], client: int) -> Samples:
            pixels = unit_interval(decoded.splits[split].inputs[rows[split][part]])
            if angles is not None:
                pixels = rotate(pixels, float(angles[client]))
            return Samples(standardised(pixels, self.mean, self.deviation), labels[split][part])

        tests = [samples("test", part, client) for client, part in enumerate(test_parts)]
        return FederatedData(
            name=self.name,
            train=tuple(samples("train", part, client) for client, part in enumerate(train_parts)),
            test=Samples(np.concatenate([t.inputs for t in tests]), np.concatenate([t.targets for t in tests])),
            classes=decoded.source.classes,
            metric=self.metric,
            test_sizes=tuple(len(test) for test in tests),
        )

    def angles(self, seed: int) -> NDArray[np.float64] | None:
        """Return each client's rotation in degrees; None if images are not rotated."""
        if self.partition != "rotated":
            return None
        return stream(seed, "data", self.name, "angles").uniform(0, self.max_rotation, self.clients)

    def _chosen(self, available: int, wanted: int, seed: int, split: str) -> NDArray[np.int64]:
        if wanted == 0:
            return np.arange(available)
        if wanted > available:
            option = "samples" if split == "train" else "test_samples"
            raise InputError(f"{option} of {self.name} is {wanted}, but its {split} split has {available} images")
        chosen = stream(seed, "data", self.name, split).choice(available, wanted, replace=False)
        return np.sort(chosen).astype(np.int64)

    def _split(self, train: NDArray[np.int64], test: NDArray[np.int64], seed: int) -> tuple[Parts, Parts]:
        rng = stream(seed, "data", self.name, "partition")
        if self.partition == "dirichlet":
            return dirichlet_split(train, test, self.clients, self.alpha, rng)
        shares = np.full(self.clients, 1 / self.clients)
        if self.partition == "power-law":
            shares = power_law_shares(self.clients, self.exponent, rng)
        return sized_partition(len(train), shares, rng), sized_partition(len(test), shares, rng)
