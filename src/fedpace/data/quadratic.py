"""The paper's Quadratic data (sections 3 and 6.1): linear regression with heterogeneous feature covariances.

From the paper: m = 100 clients, n = 100 training points each, d = 500 Gaussian features; covariances share their
eigenvectors and draw their eigenvalues from U[1, 10]; labels <w*, x> + noise with w* ~ Bernoulli(0.5) per coordinate
and noise of standard deviation 0.001; the metric is the square loss on the clients' test sets, normalised by sqrt(d).

Our choices, because the paper does not say: the shared eigenvectors are one random rotation (Haar); each client has as
many test points as training points; the square loss is the paper's l = (y - <w, x>)^2 / 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fedpace._base.errors import InputError
from fedpace._base.options import FINITE, Above, AtLeast, Options
from fedpace._base.rng import stream
from fedpace.data.federated import FederatedData, Metric, Samples


@dataclass(frozen=True)
class Quadratic(Options):
    """Linear regression; clients differ in their features' covariance."""

    name: ClassVar[str] = "quadratic"
    metric: ClassVar[Metric] = "loss"

    clients: Annotated[int, AtLeast(1)] = 100
    samples: Annotated[int, AtLeast(1)] = 100
    test_samples: Annotated[int, AtLeast(1)] = 100
    dimension: Annotated[int, AtLeast(1)] = 500
    smallest_eigenvalue: Annotated[float, Above(0)] = 1.0
    largest_eigenvalue: Annotated[float, FINITE] = 10.0
    noise: Annotated[float, AtLeast(0), FINITE] = 0.001

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        super().__post_init__()
        if not self.largest_eigenvalue >= self.smallest_eigenvalue:
            raise InputError(
                f"largest_eigenvalue of quadratic must be at least smallest_eigenvalue = {self.smallest_eigenvalue}, "
                f"but {self.largest_eigenvalue} came"
            )

    def build(self, *, seed: int) -> FederatedData:
        """Return the data of `seed`."""
        shared = stream(seed, "data", "quadratic")
        # The Q of a Gaussian matrix is a uniformly random rotation once R's diagonal is made positive.
        rotation, triangle = np.linalg.qr(shared.standard_normal((self.dimension, self.dimension)))
        rotation *= np.sign(np.diag(triangle))
        optimum = shared.integers(0, 2, self.dimension).astype(np.float64)

        train, test_inputs, test_targets = [], [], []
        for client in range(self.clients):
            rng = stream(seed, "data", "quadratic", client)
            scales = np.sqrt(rng.uniform(self.smallest_eigenvalue, self.largest_eigenvalue, self.dimension))
            points = rng.standard_normal((self.samples + self.test_samples, self.dimension)) * scales @ rotation.T
            labels = points @ optimum + self.noise * rng.standard_normal(len(points))
            inputs, targets = points.astype(np.float32), labels.astype(np.float32)
            train.append(Samples(inputs[: self.samples], targets[: self.samples]))
            test_inputs.append(inputs[self.samples :])
            test_targets.append(targets[self.samples :])
        return FederatedData(
            name=self.name,
            train=tuple(train),
            test=Samples(np.concatenate(test_inputs), np.concatenate(test_targets)),
            classes=None,
            metric=self.metric,
            loss_scale=self.dimension**-0.5,
        )
