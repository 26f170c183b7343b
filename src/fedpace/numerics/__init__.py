"""Pure functions on arrays: no clients, no rounds, no I/O."""

from fedpace.numerics.gram import whitened_gram
from fedpace.numerics.heterogeneity import pairwise_heterogeneity
from fedpace.numerics.inverse import regularised_inverse
from fedpace.numerics.min_norm import MinNormSolution, min_norm_minimiser
from fedpace.numerics.order_stats import ExpectedMax, expected_max
from fedpace.numerics.prefix import PrefixSolution, best_prefix

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
