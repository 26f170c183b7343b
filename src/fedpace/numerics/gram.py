"""The whitened Gram matrix of moment matching: how well a weighted set of clients matches the population.

With M_i = (Z_i - Z)(Z + ridge tr(Z)/D I)^-1 in D dimensions, weights a have the typical relative gradient error rho(a)
= |sum_i a_i M_i|_F^2 / D = a'Ga, with G_ij = <M_i, M_j>_F / D. The Frobenius norm over sqrt(D) is the error in an
average direction, whereas the DelayHet paper's B_ij is the error in the worst direction. Moment matching needs only G.
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
        reference: (D, D) matrix to invert instead of Z, such as a frozen one; M_i stays centred at Z.
        ridge: added to the diagonal before inverting, as a fraction of its mean; 0 = pseudo-inverse if singular.

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
        # A few columns of M_i at a time: avoids storing m x D^2 numbers, and uses one large matrix product.
        part = inverse[:, start : start + columns]
        flat = np.stack([(factor.T @ (factor @ part)).ravel() for factor in matrices])
        flat -= weights @ flat  # centre first: rounding would swamp small differences
        result += flat @ flat.T
    return result / width


def square_root(gram: FloatArray) -> FloatArray:
    """Return rows (m, r) with the inner products `gram`; r is its numerical rank."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > max(values[-1], 0.0) * len(gram) * np.finfo(np.float64).eps
    return np.asarray(vectors[:, kept] * np.sqrt(values[kept]), dtype=np.float64)


def sketched_products(factors: Sequence[FloatArray], inverse: FloatArray, *, dimension: int) -> FloatArray:
    """Return count sketches (m, dimension) of the matrices F_i'F_i A^-1, for fleets too large for a Gram matrix.

    Their inner products are unbiased estimates, with a relative error of about sqrt(2 / dimension).
    """
    sketch = CountSketch(len(inverse) ** 2, dimension, seed=0)
    return np.stack([sketch((factor.T @ (factor @ inverse)).ravel()) for factor in factors])
