"""`LabelledImages`, the base class of image data sets: it splits train and test images by one of four partitions.

The test images are split like the training images: a client's test set has the same label mix, the same rotation and
the same share of the images. The shared model is evaluated on the union of the test sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedpace._base.errors import InputError
from fedpace._base.options import FINITE, Above, AtLeast, Options
from fedpace._base.rng import stream
from fedpace.data import hub
from fedpace.data.federated import FederatedData, Metric, Samples
from fedpace.data.partition import Parts, dirichlet_split, power_law_shares, sized_partition

if TYPE_CHECKING:
    from scipy import sparse


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
