"""scikit-learn's handwritten digits: 1,797 real 8x8 images inside its wheel, so that the default job runs offline.

Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository (1998).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedpace._base.errors import MissingExtraError
from fedpace._base.options import FINITE, Above, AtLeast, Between, Options
from fedpace._base.rng import stream
from fedpace.data._public_sets import dirichlet_partition, iid_partition, rotate
from fedpace.data.federated import FederatedData, Metric, Samples

SIDE = 8
"""Pixels per side."""


@dataclass(frozen=True)
class Digits(Options):
    """Handwritten digits: a Dirichlet label mix per client.

    Upright, or each client's turned by an angle of its own.

    Args:
        clients: number of clients.
        alpha: Dirichlet concentration; small = few classes per client.
        test_fraction: share of the images held out, the same for every client's mix.
        max_rotation: degrees; a client's angle is drawn from U[0, max_rotation]. The test images are shared out
            equally, and each client's part is rotated by its angle too. 0 = upright.
    """

    name: ClassVar[str] = "digits"
    metric: ClassVar[Metric] = "accuracy"

    clients: Annotated[int, AtLeast(1)] = 60
    alpha: Annotated[float, Above(0), FINITE] = 2.0
    test_fraction: Annotated[float, Between(0, 1, "()")] = 0.2
    max_rotation: Annotated[float, AtLeast(0), FINITE] = 0.0

    def build(self, *, seed: int) -> FederatedData:
        """Return the data of `seed`, which draws the partition."""
        try:
            from sklearn.datasets import load_digits
        except ModuleNotFoundError as cause:
            raise MissingExtraError("the digits data", "data", "scikit-learn") from cause
        bunch = load_digits()
        images = (bunch.data / 16.0).astype(np.float32)
        labels = bunch.target.astype(np.int64)
        rng = stream(seed, "data", "digits")
        order = rng.permutation(labels.size)
        held_out = round(self.test_fraction * labels.size)
        test, train = order[:held_out], order[held_out:]
        parts = dirichlet_partition(labels[train], self.clients, self.alpha, rng)
        clients = [Samples(images[train[part]], labels[train[part]]) for part in parts]
        tests = [Samples(images[test], labels[test])]
        if self.max_rotation:
            angles = self.angles(seed)
            shares = iid_partition(test.size, self.clients, stream(seed, "data", "digits", "test"))
            clients = [_turned(samples, angle) for samples, angle in zip(clients, angles, strict=True)]
            tests = [
                _turned(Samples(images[test[share]], labels[test[share]]), angle)
                for share, angle in zip(shares, angles, strict=True)
            ]
        return FederatedData(
            name=self.name,
            train=tuple(clients),
            test=Samples(np.concatenate([t.inputs for t in tests]), np.concatenate([t.targets for t in tests])),
            classes=10,
            metric=self.metric,
        )

    def angles(self, seed: int) -> NDArray[np.float64]:
        """Return each client's rotation in degrees."""
        return stream(seed, "data", "digits", "angles").uniform(0, self.max_rotation, self.clients)


def _turned(samples: Samples, degrees: float) -> Samples:
    images = rotate(samples.inputs.reshape(-1, 1, SIDE, SIDE), degrees)
    return Samples(images.reshape(len(samples), -1), samples.targets)
