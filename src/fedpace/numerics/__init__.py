"""Pure numerical functions on arrays: they know no clients, rounds or I/O."""

from fedpace.numerics.heterogeneity import pairwise_heterogeneity, regularised_inverse, whitened_gram
from fedpace.numerics.min_norm import MinNormSolution, min_norm_minimiser
from fedpace.numerics.prefix import PrefixSolution, best_prefix
from fedpace.numerics.round_time import ExpectedMax, expected_max

__all__ = [
    "ExpectedMax",
    "MinNormSolution",
    "PrefixSolution",
    "best_prefix",
    "expected_max",
    "min_norm_minimiser",
    "pairwise_heterogeneity",
    "regularised_inverse",
    "whitened_gram",
]
