"""Federations on which an asynchronous scheme with a memory can run away.

Few fast clients set the pace, and slow clients hold the data. Clients differ in size, in features and in their optimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedpace._base.rng import stream
from fedpace.data.federated import FederatedData, Samples

Array = NDArray[Any]
FEATURES = 8


@dataclass(frozen=True)
class NaturalTable:
    """Linear regression on a table whose clients differ in size, in their features and in their optimum.

    Args:
        clients: number of clients.
        smallest: rows of the smallest client.
        largest: rows of the largest client; the others lie between on a logarithmic scale.
        blind: share of the features that the smaller half of the clients does not vary in.
        shift: standard deviation of the clients' mean features.
        own: standard deviation of the clients' own part of the coefficients.
        noise: standard deviation of the targets' noise.
    """

    name: ClassVar[str] = "natural-table"
    metric: ClassVar[str] = "loss"

    clients: int = 15
    smallest: int = 13
    largest: int = 1846
    blind: float = 0.25
    shift: float = 1.0
    own: float = 0.3
    noise: float = 0.3

    def build(self, *, seed: int) -> FederatedData:
        """Return the data: standardised features and a target of variance 1, as `fedpace.data.table` has them."""
        rng = stream(seed, "hard", self.name, self.clients)
        sizes = np.geomspace(self.smallest, self.largest, self.clients).round().astype(int)
        common = rng.normal(size=FEATURES)
        few = round(self.blind * FEATURES)
        pairs = []
        for client, size in enumerate(sizes.tolist()):
            inputs = rng.normal(size=(size + max(2, size // 4), FEATURES)) + self.shift * rng.normal(size=FEATURES)
            if client < self.clients // 2 and few:
                hidden = rng.choice(FEATURES, few, replace=False)
                inputs[:, hidden] = inputs[:1, hidden]
            targets = inputs @ (common + self.own * rng.normal(size=FEATURES)) + self.noise * rng.normal(
                size=len(inputs)
            )
            pairs.append((inputs, targets))
        rows = np.concatenate([inputs for inputs, _ in pairs])
        values = np.concatenate([targets for _, targets in pairs])
        mean, deviation, middle, spread = rows.mean(axis=0), rows.std(axis=0), values.mean(), values.std()

        def samples(inputs: Array, targets: Array) -> Samples:
            return Samples(
                ((inputs - mean) / deviation).astype(np.float32), ((targets - middle) / spread).astype(np.float32)
            )

        train = tuple(
            samples(inputs[:size], targets[:size])
            for (inputs, targets), size in zip(pairs, sizes.tolist(), strict=True)
        )
        held = [(inputs[size:], targets[size:]) for (inputs, targets), size in zip(pairs, sizes.tolist(), strict=True)]
        test = samples(np.concatenate([one for one, _ in held]), np.concatenate([one for _, one in held]))
        return FederatedData(self.name, train, test, None, "loss")


@dataclass(frozen=True)
class ThreeSpeeds:
    """Linear regression with 3 fast, 4 medium and 5 slow clients; the fast ones do not vary in half of the features.

    Args:
        sizes: rows of a fast, a medium and a slow client.
    """

    name: ClassVar[str] = "three-speeds"
    metric: ClassVar[str] = "loss"
    groups: ClassVar[tuple[int, int, int]] = (3, 4, 5)

    sizes: tuple[int, int, int] = (2, 300, 900)

    @property
    def clients(self) -> int:
        """Number of clients."""
        return sum(self.groups)

    def build(self, *, seed: int) -> FederatedData:
        """Return the data."""
        rng = stream(seed, "hard", self.name)
        common = np.array([1.0, -2.0, 0.5, 1.5])

        def draw(count: int, own: Array, *, blind: bool) -> Samples:
            inputs = rng.normal(size=(count, common.size))
            if blind:
                inputs[:, 2:] = 0.0
            targets = inputs @ (common + own) + 0.3 * rng.normal(size=count)
            return Samples(inputs.astype(np.float32), targets.astype(np.float32))

        train = tuple(
            draw(self.sizes[group], 0.5 * rng.normal(size=common.size), blind=group == 0)
            for group, count in enumerate(self.groups)
            for _ in range(count)
        )
        return FederatedData(self.name, train, draw(600, np.zeros(common.size), blind=False), None, "loss")
