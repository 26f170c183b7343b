"""What a client sends beside its model: feature moments, sketches of updates and label counts, packed into a note.

A note holds plain numbers, text, bytes and lists, which any framework can send. `fedpace.hosting.replies` reads it on
the server. A moment is compressed, and made private if the client asks for it, before it is packed.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import FloatArray, above, at_least, float_array
from fedpace._base.errors import InputError
from fedpace.moments.factor import factor_from_features, private_moment
from fedpace.numerics.accounting import gaussian_epsilon, gaussian_multiplier
from fedpace.numerics.count_sketch import CountSketch


def pack_moment(factor: FloatArray) -> dict[str, Any]:
    """Return a moment factor as entries of a note, in single precision to halve the bytes."""
    if not len(factor):  # the moment is 0: all features are 0, or the privacy noise hides them
        factor = np.zeros((1, factor.shape[1]))
    return {"moment": np.ascontiguousarray(factor, dtype="<f4").tobytes(), "shape": [int(n) for n in factor.shape]}


def pack_update(sketch: FloatArray) -> dict[str, Any]:
    """Return a sketch as an entry of a note, in double precision, so that it equals the server's own sketch exactly."""
    return {"update": np.ascontiguousarray(sketch, dtype="<f8").tobytes()}


def pack_labels(histogram: ArrayLike) -> dict[str, Any]:
    """Return a label histogram and its number of samples as entries of a note."""
    counts = float_array(histogram, "the label histogram")
    if (counts < 0).any():
        raise InputError(f"a label histogram must hold counts of at least 0, but {counts.tolist()} came")
    return {"labels": counts.tolist(), "samples": float(counts.sum())}


@dataclass(frozen=True)
class Privacy:
    """Options for differentially private moments with the Gaussian mechanism; see `fedpace.moments.factor`.

    Args:
        epsilon: privacy loss of one release, for one row of the batch.
        delta: probability of a larger loss.
        clip: longer rows of features are clipped to this length; choose it without looking at the data.
        releases: number of moments that the client sends in one run; each spends (epsilon, delta). Later it sends none.
    """

    epsilon: float
    delta: float
    clip: float
    releases: int = 1

    def __post_init__(self) -> None:
        """Raise InputError for invalid options when the client starts, not in its first round."""
        above(self.epsilon, 0, "epsilon of Privacy")
        above(self.clip, 0, "clip of Privacy")
        at_least(self.releases, 1, "releases of Privacy")
        if not 0 < self.delta < 1:
            raise InputError(f"delta of Privacy must lie between 0 and 1, but {self.delta!r} came")

    @classmethod
    def in_all(cls, *, epsilon: float, delta: float, clip: float, releases: int) -> Privacy:
        """Return options with which all releases together are (epsilon, delta)-private; needs the extra `privacy`.

        The epsilon of a single release is then larger than epsilon / releases: losses of Gaussian noise grow with the
        square root of the number of releases.
        """
        above(epsilon, 0, "epsilon of Privacy")
        at_least(releases, 1, "releases of Privacy")
        cost = gaussian_multiplier(epsilon, delta) ** -2
        return cls(gaussian_epsilon(cost / releases, delta), delta, clip, releases)

    def total_epsilon(self, releases: int | None = None) -> float:
        """Return the epsilon that this many releases (None = all) spend together, at the same delta."""
        count = self.releases if releases is None else releases
        return gaussian_epsilon(count * gaussian_multiplier(self.epsilon, self.delta) ** -2, self.delta)


def steps_of_work(work: Any, usual: int) -> int:
    """Return the local steps of a task with this `work` from the server; None = the usual number."""
    amount = 1.0 if work is None else float(work)
    above(amount, 0, "the work that the server asks for")
    return max(1, round(amount * usual))


MAX_FEATURES = 512
"""Largest number of columns of features, and of targets. Wider data are sketched to this width, because the time of a
selection grows with the square of the width."""
MAX_MOMENT_ROWS = 256
"""Largest number of rows of a moment that is sent."""


def narrowed(rows: ArrayLike) -> FloatArray:
    """Return the rows with at most MAX_FEATURES columns, by a count sketch that is the same on all clients.

    The sketch preserves inner products approximately.
    """
    whole = np.asarray(rows, dtype=np.float64)
    if whole.ndim != 2 or whole.shape[1] <= MAX_FEATURES:
        return whole
    sketch = CountSketch(whole.shape[1], MAX_FEATURES, seed=0)
    return np.array([sketch(row) for row in whole])


def moment_rows(features: ArrayLike, targets: ArrayLike | None = None) -> FloatArray:
    """Return the (n, d) rows for a moment; with targets (n, d + c), the targets after the features."""
    rows = narrowed(features)
    if targets is None:
        return rows
    columns = np.asarray(targets, dtype=np.float64)
    columns = narrowed(columns[:, None] if columns.ndim == 1 else columns)
    if len(columns) != len(rows):
        raise InputError(f"expected one target per row of features ({len(rows)}), but {len(columns)} came")
    return np.hstack([rows, columns])


def packed_moment(rows: ArrayLike, max_rank: int, privacy: Privacy | None = None) -> dict[str, Any]:
    """Return the moment of a batch as entries of a note; privacy noise uses the operating system's randomness."""
    max_rank = min(max_rank, MAX_MOMENT_ROWS)
    if privacy is None:
        return pack_moment(factor_from_features(rows, max_rank=max_rank))
    released = private_moment(
        rows,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        clip=privacy.clip,
        seed=secrets.randbits(128),
        max_rank=max_rank,
    )
    return pack_moment(released.factor)
