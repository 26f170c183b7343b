"""RescaledPrefix: the result of a bank's `best_prefix`, in rows of the bank, with the scale applied to B.

The paper requires max_i sum_j w_j B_ij < 1/sqrt(2), which its own data violate, and does not say how it rescales
(docs/errata.md, A9). We scale B down, never up, to a given target, and report the factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedpace._base.checks import FloatArray, IntArray, frozen
from fedpace._base.errors import InputError
from fedpace.numerics.prefix import PrefixSolution

ADMISSIBLE = 1 / math.sqrt(2)


@dataclass(frozen=True, eq=False)
class RescaledPrefix(PrefixSolution):
    """A PrefixSolution with clients as rows of the bank."""

    largest_mean: float
    """max_i sum_j share_j B_ij before scaling, the quantity that the paper's Assumption 3 bounds."""
    scale: float
    """Factor applied to B; 1 = not scaled."""

    @classmethod
    def of(cls, found: PrefixSolution, rows: IntArray, *, largest_mean: float, scale: float) -> RescaledPrefix:
        """Return a solution among `rows` translated to rows of the bank."""
        weights: FloatArray = found.weights
        return cls(
            clients=frozen(rows[found.clients], found.clients.dtype),
            weights=weights,
            heterogeneity=found.heterogeneity,
            bound=found.bound,
            objective=found.objective,
            delay=found.delay,
            largest_mean=largest_mean,
            scale=scale,
        )


def rescaled(largest_mean: float, target: float) -> float:
    """Return the factor that brings the largest mean down to `target`; 1 if `target` is 0 or already met."""
    if not 0 <= target < ADMISSIBLE:
        raise InputError(
            f"target must be at least 0 and below 1/sqrt(2) = {ADMISSIBLE:.4f} (Assumption 3), but {target!r} came; "
            "0 leaves B as it is"
        )
    return 1.0 if target == 0 or largest_mean <= target else target / largest_mean
