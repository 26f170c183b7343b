"""The preparation of a client's feature moment before it is sent: targets appended, compressed, and made private."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import FloatArray, above, at_least
from fedpace._base.errors import InputError
from fedpace.hosting.notes import pack_moment
from fedpace.moments.factor import factor_from_features
from fedpace.moments.private import private_moment
from fedpace.numerics.count_sketch import CountSketch


@dataclass(frozen=True)
class Privacy:
    """Options for differentially private moments with the Gaussian mechanism; see `fedpace.moments.private`.

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


WIDEST = 512
"""Largest number of columns of features, and of targets. Wider data are sketched to this width, because the time of a
selection grows with the square of the width."""
MOST_ROWS = 256
"""Largest number of rows of a moment that is sent."""


def narrowed(rows: ArrayLike) -> FloatArray:
    """Return the rows with at most WIDEST columns, by a count sketch that is the same on all clients.

    The sketch preserves inner products approximately.
    """
    whole = np.asarray(rows, dtype=np.float64)
    if whole.ndim != 2 or whole.shape[1] <= WIDEST:
        return whole
    sketch = CountSketch(whole.shape[1], WIDEST, seed=0)
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
    max_rank = min(max_rank, MOST_ROWS)
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
