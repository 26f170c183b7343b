"""Private second moments: the Gaussian mechanism, (epsilon, delta)-differentially private for one row.

Rows are clipped to length `clip`, so that replacing one row z changes A = (1/n) sum z z' by at most Delta = sqrt(2)
clip^2 / n in Frobenius norm (orthogonal rows reach the bound). The mechanism adds symmetric Gaussian noise with
standard deviation sigma in an orthonormal basis of the symmetric matrices, which is sigma / sqrt(2) off the diagonal.
sigma is the smallest value that gives (epsilon, delta), by the analytic calibration of Balle and Wang (ICML 2018,
Theorem 8),

    Phi(Delta / 2 sigma - epsilon sigma / Delta) - e^epsilon Phi(-Delta / 2 sigma - epsilon sigma / Delta) <= delta,

which needs less noise than the classical sqrt(2 log(1.25 / delta)) / epsilon and also holds for epsilon above 1.
Negative eigenvalues are then dropped and the rest is compressed. This is post-processing and costs no privacy.

The guarantee protects the value of any one row of the batch, given the number of rows. Each release spends its own
budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import LARGEST, FloatArray, above, between, float_array, frozen, of_ordinary_size, whole
from fedpace._base.errors import InputError
from fedpace._base.rng import stream

LEAST_EPSILON, MOST_EPSILON = 1e-9, 1e15
"""Range of epsilon; outside, the noise is numerically useless."""


@dataclass(frozen=True, eq=False)
class PrivateMoment:
    """A noisy second moment and its privacy guarantee."""

    factor: FloatArray
    """(r, d) F with second moment F'F."""
    epsilon: float
    delta: float
    sigma: float
    """Standard deviation of the noise on the diagonal; sigma / sqrt(2) elsewhere."""
    clip: float
    """Length to which longer rows were clipped."""
    samples: int


def private_moment(
    features: ArrayLike,
    *,
    epsilon: float,
    delta: float,
    clip: float,
    seed: int,
    max_rank: int | None = None,
) -> PrivateMoment:
    """Return the (epsilon, delta)-private second moment of a batch.

    Args:
        features: (n, d) rows, with bias and label columns appended if wanted.
        epsilon: privacy loss, above 0.
        delta: probability of exceeding epsilon, between 0 and 1; choose it well below 1 / n.
        clip: rows longer than this are scaled down. Choose it without looking at the data.
        seed: of the noise; the client must keep it secret and never reuse it.
        max_rank: keep only this many leading directions.
    """
    batch = float_array(features, "features", ndim=2)
    samples, width = batch.shape
    if samples < 1 or width < 1:
        raise InputError(f"expected at least one row and one column of features, but shape {batch.shape} came")
    of_ordinary_size(batch, "the features")
    above(clip, 0, "clip")
    between(clip, 1e-70, LARGEST, "clip")
    if max_rank is not None:
        whole(max_rank, 1, "max_rank")
    sigma = gaussian_sigma(math.sqrt(2) * clip**2 / samples, epsilon=epsilon, delta=delta)
    lengths = np.linalg.norm(batch, axis=1, keepdims=True)
    clipped = batch * np.minimum(1.0, clip / np.maximum(lengths, clip))
    noise = stream(seed, "private-moment").normal(scale=sigma / math.sqrt(2), size=(width, width))
    # (N + N') / sqrt(2): variance s^2 off the diagonal and 2 s^2 on it, with s = sigma / sqrt(2).
    noisy = clipped.T @ clipped / samples + (noise + noise.T) / math.sqrt(2)
    values, vectors = np.linalg.eigh(noisy)
    kept = np.flatnonzero(values > 0)[::-1][:max_rank]
    factor = np.sqrt(values[kept])[:, None] * vectors[:, kept].T
    return PrivateMoment(factor=frozen(factor), epsilon=epsilon, delta=delta, sigma=sigma, clip=clip, samples=samples)


def gaussian_sigma(sensitivity: float, *, epsilon: float, delta: float) -> float:
    """Return the smallest standard deviation that makes a query of this L2 sensitivity (epsilon, delta)-private."""
    above(sensitivity, 0, "sensitivity")
    above(epsilon, 0, "epsilon")
    between(epsilon, LEAST_EPSILON, MOST_EPSILON, "epsilon")
    above(delta, 0, "delta")
    between(delta, 0, 1 - 1e-9, "delta")
    low, high = 1e-9 / max(1.0, epsilon), 1.0
    while gaussian_delta(high, epsilon) > delta:
        low, high = high, 2 * high
    for _ in range(200):
        middle = math.sqrt(low * high)
        if gaussian_delta(middle, epsilon) > delta:
            low = middle
        else:
            high = middle
        if high <= low * (1 + 1e-12):
            break
    return sensitivity * high


def gaussian_delta(ratio: float, epsilon: float) -> float:
    """Return the exact delta at `epsilon` for noise with `ratio` = sigma / sensitivity."""
    from scipy.special import log_ndtr  # imported here, so that `import fedpace` stays light

    half, shift = 1 / (2 * ratio), epsilon * ratio
    # In logarithms, because e^epsilon overflows long before its product with the tail matters.
    upper, lower = float(log_ndtr(half - shift)), epsilon + float(log_ndtr(-half - shift))
    return math.exp(upper) * -math.expm1(min(0.0, lower - upper))
