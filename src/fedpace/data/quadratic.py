"""The paper's Quadratic data (sections 3 and 6.1): linear regression with heterogeneous feature covariances.

From the paper: m = 100 clients, n = 100 training points each, d = 500 Gaussian features; covariances share their
eigenvectors and draw their eigenvalues from U[1, 10]; labels <w*, x> + noise with w* ~ Bernoulli(0.5) per coordinate
and noise of standard deviation 0.001; the metric is the square loss on the clients' test sets, normalised by sqrt(d).

Our choices, because the paper does not say: the shared eigenvectors are one random rotation (Haar); each client has as
many test points as training points; the square loss is the paper's l = (y - <w, x>)^2 / 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedpace._base.checks import above, at_least, finite
from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.data.federated import FederatedData, Metric, Samples


@dataclass(frozen=True)
class Quadratic:
    """Linear regression; clients differ in their features' covariance."""

    name: ClassVar[str] = "quadratic"
    metric: ClassVar[Metric] = "loss"

    clients: int = 100
    samples: int = 100
    test_samples: int = 100
    dimension: int = 500
    smallest_eigenvalue: float = 1.0
    largest_eigenvalue: float = 10.0
    noise: float = 0.001

    def __post_init__(self) -> None:
        """Raise if an option is invalid."""
        for option in ("clients", "samples", "test_samples", "dimension"):
            at_least(getattr(self, option), 1, f"{option} of quadratic")
        above(self.smallest_eigenvalue, 0, "smallest_eigenvalue of quadratic")
        at_least(self.noise, 0, "noise of quadratic")
        for option in ("largest_eigenvalue", "noise"):
            finite(getattr(self, option), f"{option} of quadratic")
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
