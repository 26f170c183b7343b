"""What a client's moment becomes before it leaves: targets put behind the features, compressed, privatised if asked."""

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
    """Release moments by the Gaussian mechanism: see `fedpace.moments.private`.

    Args:
        epsilon: privacy loss of one release, for one row of the batch.
        delta: probability of exceeding it.
        clip: longest row of features kept as it is; choose it without looking at the data.
        releases: moments that the client gives away in one run; each spends (epsilon, delta) anew. Then none is sent.
    """

    epsilon: float
    delta: float
    clip: float
    releases: int = 1

    def __post_init__(self) -> None:
        """Refuse options that make no sense, at the client's start and not in its first round."""
        above(self.epsilon, 0, "epsilon of Privacy")
        above(self.clip, 0, "clip of Privacy")
        at_least(self.releases, 1, "releases of Privacy")
        if not 0 < self.delta < 1:
            raise InputError(f"delta of Privacy must lie between 0 and 1, but {self.delta!r} came")


WIDEST = 512
"""Columns of features, and of targets, that are sent as they are: more are sketched to so many, since the time of a
selection grows with the square of the columns."""
MOST_ROWS = 256
"""Of a moment that is sent."""


def narrowed(rows: ArrayLike) -> FloatArray:
    """Return rows of at most WIDEST columns: a seeded count sketch, the same on all clients, keeps inner products."""
    whole = np.asarray(rows, dtype=np.float64)
    if whole.ndim != 2 or whole.shape[1] <= WIDEST:
        return whole
    sketch = CountSketch(whole.shape[1], WIDEST, seed=0)
    return np.array([sketch(row) for row in whole])


def moment_rows(features: ArrayLike, targets: ArrayLike | None = None) -> FloatArray:
    """Return (n, d) rows that a moment is made of, or (n, d + c) with each row's targets behind its features."""
    rows = narrowed(features)
    if targets is None:
        return rows
    columns = np.asarray(targets, dtype=np.float64)
    columns = narrowed(columns[:, None] if columns.ndim == 1 else columns)
    if len(columns) != len(rows):
        raise InputError(f"expected one target per row of features ({len(rows)}), but {len(columns)} came")
    return np.hstack([rows, columns])


def packed_moment(rows: ArrayLike, max_rank: int, privacy: Privacy | None = None) -> dict[str, Any]:
    """Return the moment of a batch as entries of a note. Noise comes from the operating system's randomness."""
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
