"""Computes the pairwise heterogeneity B of clients, scaled as the DelayHet schemes require.

The paper assumes max_i sum_j w_j B_ij < 1/sqrt(2) (Assumption 3) and says that it "ensures" this, without saying how.
Its own Quadratic data violate the bound by a factor of sixteen, so B must have been rescaled (docs/errata.md, A9). Here
the scaling is explicit: B is scaled down, never up, until the largest mean equals the target c. Every cohort records
the factor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedpace._base.checks import BoolArray, FloatArray, IntArray, shares_among
from fedpace._base.errors import InputError
from fedpace._base.options import FINITE, AtLeast, Between
from fedpace.core.types import View
from fedpace.moments.bank import MAX_MEAN_B, known_heterogeneity, rescale_factor


@dataclass(frozen=True)
class FeatureHeterogeneity:
    """The clients with known moments, as input for the solvers. Index i is fleet row `rows[i]`."""

    rows: IntArray
    matrix: FloatArray
    """B after scaling."""
    share: FloatArray
    """Shares among `rows`, summing to 1."""
    delay: FloatArray
    candidates: BoolArray
    """True for clients that may be selected."""
    largest_mean: float
    """max_i sum_j w_j B_ij before scaling, the quantity that Assumption 3 bounds."""
    scale: float
    """Factor applied to B; 1 = not scaled."""


Ridge = Annotated[float, AtLeast(0), FINITE]
TargetHeterogeneity = Annotated[float, Between(0, MAX_MEAN_B, "[)")]
"""Largest mean heterogeneity that B is scaled down to; Assumption 3 of the paper needs it below 1/sqrt(2). 0 = B stays
as it is."""


def feature_heterogeneity(view: View, *, ridge: float, target: float, scheme: str) -> FeatureHeterogeneity:
    """Return B of the clients with known moments, scaled down to the target; target 0 = not scaled."""
    if view.moments is None:
        raise InputError(f"{scheme} needs feature moments, but no client has reported any")
    rows = np.flatnonzero(view.moments.known)
    share = shares_among(view.share, rows)
    matrix = known_heterogeneity(view.moments, ridge=ridge, shares=view.share)
    largest_mean = float((matrix @ share).max())
    scale = rescale_factor(largest_mean, target)
    return FeatureHeterogeneity(
        rows=rows,
        matrix=matrix * scale,
        share=share,
        delay=view.delay[rows],
        candidates=view.available[rows],
        largest_mean=largest_mean,
        scale=scale,
    )
