"""What every bank answers to "whom should we wait for": a prefix, in rows of the roster, with the scale of B.

ERRATA A9: the paper needs max_i sum_j w_j B_ij < 1/sqrt(2), which its own data violate, and does not say how it
rescales. We scale down, never up, to a stated target, and report the factor.
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
    """A PrefixSolution whose clients are rows of the bank."""

    largest_mean: float
    """max_i sum_j share_j B_ij before scaling: what the paper's Assumption 3 bounds."""
    scale: float
    """What B was multiplied by; 1 = left alone."""

    @classmethod
    def of(cls, found: PrefixSolution, rows: IntArray, *, largest_mean: float, scale: float) -> RescaledPrefix:
        """Translate a solution among `rows` into rows of the bank."""
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
    """Return the factor that brings the largest mean heterogeneity down to `target`; 1 where 0 or already below."""
    if not 0 <= target < ADMISSIBLE:
        raise InputError(
            f"target must be at least 0 and below 1/sqrt(2) = {ADMISSIBLE:.4f} (Assumption 3), but {target!r} came; "
            "0 leaves B as it is"
        )
    return 1.0 if target == 0 or largest_mean <= target else target / largest_mean
