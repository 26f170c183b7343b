"""The whitened Gram matrix of moment matching: how well weighted clients add up to the population.

With M_i = (Z_i - Z)(Z + ridge tr(Z)/D I)^-1 in D dimensions, weights a make a typical relative gradient error of
rho(a) = |sum_i a_i M_i|_F^2 / D = a'Ga, G_ij = <M_i, M_j>_F / D: the Frobenius norm over sqrt(D) is the error in an
average direction, where B_ij of the seed paper is the worst direction. G is all that such schemes need.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import FloatArray
from fedpace._base.checks import shares as checked_shares
from fedpace.numerics.count_sketch import CountSketch
from fedpace.numerics.heterogeneity import checked_factors, whiten

PORTION_BYTES = 200_000_000


def whitened_gram(
    factors: Sequence[ArrayLike],
    *,
    shares: ArrayLike | None = None,
    reference: ArrayLike | None = None,
    ridge: float = 0.0,
) -> FloatArray:
    """Return G_ij = <M_i, M_j>_F / D of all pairs, with Z_i = F_i' F_i and Z = sum_i share_i Z_i.

    Args:
        factors: F_i of shape (r_i, D), one per client.
        shares: weights of the clients in Z; equal if None.
        reference: the matrix to invert (D, D), in place of Z, such as one frozen earlier; M_i stays centred at Z.
        ridge: load on the diagonal before inverting, as a fraction of its mean; 0 = the pseudo-inverse where singular.

    Returns:
        (m, m) symmetric, positive semi-definite; shares'G shares = 0.
    """
    matrices = checked_factors(factors)
    weights = checked_shares(shares, len(matrices))
    inverse = whiten(matrices, weights, reference=reference, ridge=ridge).inverse
    count, width = len(matrices), len(inverse)
    result = np.zeros((count, count))
    columns = max(1, min(width, PORTION_BYTES // (8 * count * width)))
    for start in range(0, width, columns):
        # M_i a few columns at a time: m x D^2 numbers need not exist, and the product is one large matrix product.
        part = inverse[:, start : start + columns]
        flat = np.stack([(factor.T @ (factor @ part)).ravel() for factor in matrices])
        flat -= weights @ flat  # before multiplying: differences of near-identical clients would drown in rounding
        result += flat @ flat.T
    return result / width


def square_root(gram: FloatArray) -> FloatArray:
    """Return rows (m, r) whose inner products are `gram`, r its numerical rank."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > max(values[-1], 0.0) * len(gram) * np.finfo(np.float64).eps
    return np.asarray(vectors[:, kept] * np.sqrt(values[kept]), dtype=np.float64)


def sketched_products(factors: Sequence[FloatArray], inverse: FloatArray, *, dimension: int) -> FloatArray:
    """Return count sketches (m, dimension) of the matrices F_i'F_i A^-1, for fleets whose Gram matrix is too large.

    Their inner products are those of the matrices on average, with a relative error of about sqrt(2 / dimension).
    """
    sketch = CountSketch(len(inverse) ** 2, dimension, seed=0)
    return np.stack([sketch((factor.T @ (factor @ inverse)).ravel()) for factor in factors])
