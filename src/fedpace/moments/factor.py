"""A client's second moment as a low-rank factor F, A_i = F'F = (1/n) sum_rows z z', exact or private.

The moment is not centred, as the DelayHet paper's derivation requires (docs/errata.md, C1). z is a row of last-layer
features. A 1 is appended if the layer has a bias (C3), and the label for the augmented moment.

X / sqrt(n) is a factor too, but it would show the server every row of features. We send S V' of its singular value
decomposition instead. It depends on the rows only through their second moment, so it reveals no more than the moment.
This is no privacy guarantee, since the moment of one row is that row up to its sign.

`private_moment` gives a guarantee: the Gaussian mechanism, (epsilon, delta)-differentially private for one row. Rows
are clipped to length `clip`, so that replacing one row z changes A = (1/n) sum z z' by at most Delta = sqrt(2) clip^2 /
n in Frobenius norm (orthogonal rows reach the bound). The mechanism adds symmetric Gaussian noise with standard
deviation sigma in an orthonormal basis of the symmetric matrices, which is sigma / sqrt(2) off the diagonal. sigma is
the smallest value that gives (epsilon, delta), by the analytic calibration of Balle and Wang (ICML 2018, Theorem 8),

    Phi(Delta / 2 sigma - epsilon sigma / Delta) - e^epsilon Phi(-Delta / 2 sigma - epsilon sigma / Delta) <= delta,

which needs less noise than the classical sqrt(2 log(1.25 / delta)) / epsilon and also holds for epsilon above 1.
Negative eigenvalues are then dropped and the rest is compressed. This is post-processing and costs no privacy. The
guarantee protects the value of any one row of the batch, given the number of rows. Each release spends its own budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import LARGEST, FloatArray, above, between, float_array, frozen, of_ordinary_size, whole
from fedpace._base.errors import InputError
from fedpace._base.rng import stream


@dataclass(frozen=True, eq=False)
class Moment:
    """A second moment, ready to be sent to the server."""

    factor: FloatArray
    """(r, d) F with second moment F'F; orthogonal rows, longest first."""
    samples: int
    """Number of rows in the batch."""
    energy: float
    """tr(A) before compression: the mean squared length of a row."""
    discarded: float
    """Fraction of `energy` that compression dropped, 0 to 1."""


def factor_from_features(
    features: ArrayLike,
    *,
    bias: bool = False,
    labels: ArrayLike | None = None,
    classes: int | None = None,
    max_rank: int | None = None,
) -> FloatArray:
    """Return the factor of `moment_from_features`, without its metadata, for `MomentBank.put` and `Outcome.moment`."""
    return moment_from_features(features, bias=bias, labels=labels, classes=classes, max_rank=max_rank).factor


def moment_from_features(
    features: ArrayLike,
    *,
    bias: bool = False,
    labels: ArrayLike | None = None,
    classes: int | None = None,
    max_rank: int | None = None,
) -> Moment:
    """Return the second moment of a batch.

    Args:
        features: (n, d) rows of last-layer features.
        bias: append a 1 to each row.
        labels: appended last: (n,) or (n, c) regression targets or one-hot rows; with `classes`, (n,) class numbers.
        classes: number of classes, if `labels` are class numbers 0 to classes - 1.
        max_rank: keep only this many leading directions; `Moment.discarded` reports the energy that was dropped.
    """
    rows = moment_rows(features, bias=bias, labels=labels, classes=classes)
    return _compressed(rows / math.sqrt(len(rows)), len(rows), max_rank)


def moment_rows(
    features: ArrayLike, *, bias: bool = False, labels: ArrayLike | None = None, classes: int | None = None
) -> FloatArray:
    """Return the rows z, with bias and label columns appended; arguments as for `moment_from_features`."""
    batch = float_array(features, "features", ndim=2)
    samples = batch.shape[0]
    if samples < 1 or batch.shape[1] < 1:
        raise InputError(f"expected at least one row and one column of features, but shape {batch.shape} came")
    parts = [batch]
    if bias:
        parts.append(np.ones((samples, 1)))
    if labels is not None:
        parts.append(_label_columns(labels, samples, classes))
    elif classes is not None:
        raise InputError(f"classes = {classes} came without labels: give both, or neither")
    return np.hstack(parts)


def compress(factor: ArrayLike, max_rank: int, *, samples: int = 0) -> Moment:
    """Return a Moment with the factor's `max_rank` leading directions, and the fraction of energy dropped."""
    return _compressed(float_array(factor, "the factor", ndim=2), samples, max_rank)


def _compressed(factor: FloatArray, samples: int, max_rank: int | None) -> Moment:
    if max_rank is not None:
        whole(max_rank, 1, "max_rank")
    of_ordinary_size(factor, "the features")
    if len(factor) > factor.shape[1]:
        factor = np.asarray(np.linalg.qr(factor, mode="r"), dtype=np.float64)
    # S V' = U'F, with U from the small Gram matrix: ten times cheaper than a singular value decomposition. F'F stays
    # exact because U is orthogonal, even if small eigenvalues are inaccurate.
    _, vectors = np.linalg.eigh(factor @ factor.T)
    turned = vectors[:, ::-1].T @ factor
    lengths = np.linalg.norm(turned, axis=1)
    rank = int((lengths > lengths.max(initial=0.0) * max(factor.shape) * np.finfo(np.float64).eps).sum())
    kept = rank if max_rank is None else min(rank, max_rank)
    leading = turned[:kept]
    # The sign of a singular vector is arbitrary: fix it, so that the same batch always gives the same factor.
    pivot = np.take_along_axis(leading, np.abs(leading).argmax(axis=1, keepdims=True), axis=1)
    result = leading * np.where(pivot < 0, -1.0, 1.0)
    energy = float((lengths**2).sum())
    discarded = float((lengths[kept:] ** 2).sum()) / energy if energy > 0 else 0.0
    return Moment(factor=frozen(result), samples=samples, energy=energy, discarded=discarded)


def _label_columns(labels: ArrayLike, samples: int, classes: int | None) -> FloatArray:
    if classes is None:
        columns = float_array(labels, "labels", ndim=np.ndim(labels) if np.ndim(labels) == 1 else 2)
        columns = columns[:, None] if columns.ndim == 1 else columns
    else:
        numbers = np.asarray(labels)
        if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
            raise InputError(
                f"class numbers must be whole numbers on one axis, but {numbers.dtype} {numbers.shape} came"
            )
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < classes):
            raise InputError(
                f"class numbers must lie in 0 to {classes - 1}, but {numbers.min()} to {numbers.max()} came"
            )
        columns = np.zeros((numbers.size, classes))
        columns[np.arange(numbers.size), numbers] = 1.0
    if columns.shape[0] != samples:
        raise InputError(f"expected one label a row of features ({samples}), but {columns.shape[0]} came")
    return columns


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
