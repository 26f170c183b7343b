"""A federation in which a few slow clients alone hold some of the classes.

Clients 0 to `holders` - 1 hold all images of `classes` and nothing else. They are `slower` times as slow as the median
of the others. The other clients share the remaining images, in a Dirichlet mix of labels. A scheme that rarely asks the
slow clients, or gives them too little weight when it does, never learns their classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace._base.rng import stream
from fedpace.core.types import DelayModel
from fedpace.data._public_sets import dirichlet_partition, iid_partition
from fedpace.data.federated import FederatedData, Metric, Samples
from fedpace.delays.base import MeanWithJitter

HOLDERS = 5
"""Number of clients that hold the classes."""


@dataclass(frozen=True)
class HeldDigits:
    """Handwritten digits, some of whose classes only the first clients hold.

    Args:
        clients: number of clients.
        holders: number of clients that hold `classes` alone.
        classes: the classes that nobody else holds.
        alpha: Dirichlet concentration of the other clients' label mix.
        test_fraction: share of the images held out.
    """

    name: ClassVar[str] = "held-digits"
    metric: ClassVar[Metric] = "accuracy"

    clients: int = 50
    holders: int = HOLDERS
    classes: tuple[int, ...] = (8, 9)
    alpha: float = 2.0
    test_fraction: float = 0.2

    def build(self, *, seed: int) -> FederatedData:
        """Return the data of `seed`, which draws the partition."""
        from sklearn.datasets import load_digits

        bunch = load_digits()
        images, labels = (bunch.data / 16.0).astype(np.float32), bunch.target.astype(np.int64)
        rng = stream(seed, "data", self.name)
        order = rng.permutation(labels.size)
        cut = round(self.test_fraction * labels.size)
        test, train = order[:cut], order[cut:]
        held = np.isin(labels[train], self.classes)
        theirs, others = train[held], train[~held]
        parts = [theirs[part] for part in iid_partition(theirs.size, self.holders, rng)]
        mixes = dirichlet_partition(labels[others], self.clients - self.holders, self.alpha, rng)
        parts += [others[part] for part in mixes]
        return FederatedData(
            name=self.name,
            train=tuple(Samples(images[part], labels[part]) for part in parts),
            test=Samples(images[test], labels[test]),
            classes=10,
            metric=self.metric,
        )


@dataclass(frozen=True)
class HoldersDelays:
    """Delays of `base`, except that the first clients are `slower` times as slow as the median of the others.

    Args:
        base: the delay model of the other clients.
        holders: number of slow clients.
        slower: their delay over the median delay of the others.
    """

    name: ClassVar[str] = "slow-holders"

    base: Any
    holders: int = HOLDERS
    slower: float = 20.0

    def build(self, clients: int, *, model_bytes: int, seed: int) -> DelayModel:
        """Return the delays of `clients` clients."""
        expected: FloatArray = self.base.build(clients, model_bytes=model_bytes, seed=seed).expected().copy()
        expected[: self.holders] = self.slower * np.median(expected[self.holders :])
        return MeanWithJitter(expected, 0.5 * expected, sigma=0.0, seed=seed, what=self.name)
