"""scikit-learn's handwritten digits: 1,797 real 8x8 images inside its wheel, so that the default job runs offline.

Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository (1998).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedpace.core.checks import above, at_least, finite
from fedpace.core.errors import InputError, MissingExtraError
from fedpace.core.rng import stream
from fedpace.data.federated import FederatedData, Metric, Samples
from fedpace.data.partition import dirichlet_partition


@dataclass(frozen=True)
class Digits:
    """The digits split over clients with a Dirichlet label mix.

    Args:
        clients: number of clients.
        alpha: Dirichlet concentration; small = few classes a client.
        test_fraction: share of the images held out, the same for every client's mix.
    """

    name: ClassVar[str] = "digits"
    metric: ClassVar[Metric] = "accuracy"

    clients: int = 60
    alpha: float = 2.0
    test_fraction: float = 0.2

    def __post_init__(self) -> None:
        """Refuse options that make no sense."""
        at_least(self.clients, 1, "clients of digits")
        above(self.alpha, 0, "alpha of digits")
        finite(self.alpha, "alpha of digits")
        if not 0 < self.test_fraction < 1:
            raise InputError(f"test_fraction of digits must lie between 0 and 1, but {self.test_fraction} came")

    def build(self, *, seed: int) -> FederatedData:
        """Draw the split of `seed`."""
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
        return FederatedData(
            name=self.name,
            train=tuple(Samples(images[train[part]], labels[train[part]]) for part in parts),
            test=Samples(images[test], labels[test]),
            classes=10,
            metric=self.metric,
        )
