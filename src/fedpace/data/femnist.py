"""FEMNIST: handwritten characters by writer, 62 classes, 28x28 pixels (LEAF, Caldas et al. 2018); `flwrlabs/femnist`.

A client is a writer. LEAF has no test split, so a random share of every writer's images is held out.

The partition `cloned` is ours, for fleets larger than the data: a client is a clone of a writer, with some of the
writer's images, all rotated by one small angle. No clone trains on images that are held out from its writer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedpace._base.errors import InputError
from fedpace._base.options import FINITE, AtLeast
from fedpace._base.rng import stream
from fedpace.data import hub
from fedpace.data._public_sets import OwnedRows, Rows, rotate, standardised, unit_interval
from fedpace.data.federated import FederatedData, Samples

MEAN, DEVIATION = (0.9615,), (0.1633,)
"""Mean and deviation of the pixels in [0, 1], measured on 300 writers; paper is white (1), ink is dark."""
SIDE = 28


@dataclass(frozen=True)
class Femnist(OwnedRows):
    """FEMNIST: a client per writer, or per clone of one, or iid.

    `natural` are the writers, `cloned` their clones; `iid` deals the images out evenly.

    Args:
        clients: number of writers, drawn from those with enough images; 0 = all. Any number with `cloned`.
        partition: `natural` (a client is a writer), `iid` (the same images, distributed at random) or `cloned` (several
            clients per writer, each with some of the images, rotated by its own angle).
        min_samples: least images of a writer that takes part.
        test_fraction: share of every writer's images that is held out.
        folder: folder of parquet files; "" = $FEDPACE_DATA, else the Hub.
        samples: images that a clone trains on, drawn from its writer's images.
        max_rotation: degrees; a clone's angle is drawn from U[-max_rotation, max_rotation].
        shrink: pixels per side that are averaged into one: 1, 2, 4 or 7. With 2, images are 14x14 and cost a quarter.
    """

    name: ClassVar[str] = "femnist"

    partition: Literal["natural", "iid", "cloned"] = "natural"  # type: ignore[assignment]
    samples: Annotated[int, AtLeast(1)] = 40
    max_rotation: Annotated[float, AtLeast(0), FINITE] = 15.0
    shrink: int = 1

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        super().__post_init__()
        if self.shrink not in (1, 2, 4, 7):
            raise InputError(f"shrink of femnist must be 1, 2, 4 or 7, but {self.shrink!r} came")
        if self.partition == "cloned" and self.clients < 1:
            raise InputError('partition = "cloned" of femnist needs to know how many clients: set `clients`')

    def hold_out(self, rows: Rows, rng: np.random.Generator) -> tuple[Rows, Rows]:
        """Return training rows and test rows, drawn at random."""
        order = rng.permutation(rows)
        held = max(1, round(self.test_fraction * len(rows)))
        return np.sort(order[held:]), np.sort(order[:held])

    def prepared(self, inputs: NDArray[np.uint8], degrees: float = 0.0) -> NDArray[np.float32]:
        """Return rotated, averaged and normalised pixels."""
        pixels = unit_interval(inputs)
        if degrees:
            pixels = 1 - rotate(1 - pixels, degrees)  # fill the corners with paper
        if self.shrink > 1:
            side = SIDE // self.shrink
            pixels = pixels.reshape(len(pixels), 1, side, self.shrink, side, self.shrink).mean(axis=(3, 5))
        return standardised(pixels, MEAN, DEVIATION)

    def build(self, *, seed: int) -> FederatedData:
        """Return the data of `seed`, which draws the clients."""
        return self._cloned(seed) if self.partition == "cloned" else super().build(seed=seed)

    def angles(self, seed: int) -> NDArray[np.float64]:
        """Return each clone's rotation in degrees."""
        return stream(seed, "data", self.name, "angles").uniform(-self.max_rotation, self.max_rotation, self.clients)

    def _cloned(self, seed: int) -> FederatedData:
        rows = hub.load(self.name, self.folder).splits["train"]
        held = self.held(rows.owners, seed, everybody=True)
        angles = self.angles(seed)
        train, tests = [], []
        for client in range(self.clients):
            own, test = held[client % len(held)]
            rng = stream(seed, "data", self.name, "clone", client)
            chosen = np.sort(rng.choice(own, min(self.samples, len(own)), replace=False))
            tested = rng.choice(test, 1 + client % 2)  # one or two, so that ten thousand clients can be evaluated
            degrees = float(angles[client])
            train.append(Samples(self.prepared(rows.inputs[chosen], degrees), rows.labels[chosen]))
            tests.append(Samples(self.prepared(rows.inputs[tested], degrees), rows.labels[tested]))
        return FederatedData(
            name=self.name,
            train=tuple(train),
            test=Samples(np.concatenate([t.inputs for t in tests]), np.concatenate([t.targets for t in tests])),
            classes=hub.SOURCES[self.name].classes,
            metric=self.metric,
            test_sizes=tuple(len(test) for test in tests),
        )
