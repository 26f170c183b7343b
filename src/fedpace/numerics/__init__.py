"""Pure numerical functions on arrays: they know no clients, rounds or I/O."""

from fedpace.numerics.gram import whitened_gram
from fedpace.numerics.heterogeneity import pairwise_heterogeneity
from fedpace.numerics.inverse import regularised_inverse
from fedpace.numerics.min_norm import MinNormSolution, min_norm_minimiser
from fedpace.numerics.order_stats import ExpectedMax, expected_max
from fedpace.numerics.prefix import PrefixSolution, best_prefix
from fedpace.numerics.transport import Transport, transport_cost

__all__ = [
    "ExpectedMax",
    "MinNormSolution",
    "PrefixSolution",
    "Transport",
    "best_prefix",
    "expected_max",
    "min_norm_minimiser",
    "pairwise_heterogeneity",
    "regularised_inverse",
    "transport_cost",
    "whitened_gram",
]
