"""Feature heterogeneity between clients: B_ij = ||(A_i - A_j) A^-1||_2 of the DelayHet paper.

A_i = E[x x'] is client i's uncentred second moment of last-layer features (docs/errata.md, C1), and A = sum_j w_j A_j.
Where we depart from the paper:
- The norm is the largest singular value. (A_i - A_j) A^-1 is not symmetric, so eigenvalues underestimate it (B4).
- If A is singular, it is pseudo-inverted or gets a ridge (C2, `fedpace.numerics.inverse`).
- A weights clients by their share of the objective (C11).
- No d x d matrix is formed or decomposed per pair (B9): `fedpace.numerics.whitened` computes the norms.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import FloatArray, float_array, listed, of_ordinary_size
from fedpace._base.checks import shares as checked_shares
from fedpace._base.errors import InputError
from fedpace.numerics.inverse import regularised_inverse
from fedpace.numerics.whitened import Whitened


def checked_factors(factors: Sequence[ArrayLike]) -> list[FloatArray]:
    """Return the factors as finite float64 matrices of equal width; raise InputError otherwise."""
    matrices = [
        float_array(factor, f"the factor of client {row}", ndim=2)
        for row, factor in enumerate(listed(factors, "the factors"))
    ]
    if not matrices:
        raise InputError("expected the factor of at least one client, but none came")
    width = matrices[0].shape[1]
    if width == 0:
        raise InputError("a factor must have at least one column, one a feature, but client 0's has none")
    for row, matrix in enumerate(matrices):
        of_ordinary_size(matrix, f"the factor of client {row}")
        if matrix.shape[1] != width:
            raise InputError(
                f"all factors must have one width: client 0's has {width} columns, client {row}'s has {matrix.shape[1]}"
            )
    return matrices


def mean_moment(factors: Sequence[FloatArray], shares: FloatArray) -> FloatArray:
    """Return A = sum_i share_i F_i' F_i."""
    total = np.zeros((factors[0].shape[1],) * 2)
    for factor, share in zip(factors, shares, strict=True):
        if share > 0 and factor.size:
            total += share * (factor.T @ factor)
    return total


def pairwise_heterogeneity(
    factors: Sequence[ArrayLike],
    *,
    shares: ArrayLike | None = None,
    reference: ArrayLike | None = None,
    ridge: float = 0.0,
    tol: float = 1e-3,
) -> FloatArray:
    """Return B_ij = ||(A_i - A_j)(A + ridge tr(A)/d I)^-1||_2 of all pairs, with A_i = F_i' F_i.

    Args:
        factors: F_i of shape (r_i, d), one per client; the r_i may differ.
        shares: weights of the clients in A; equal if None.
        reference: A itself (d, d) instead of the weighted mean, such as a frozen one.
        ridge: added to the diagonal of A, as a fraction of its mean; 0 = pseudo-inverse if A is singular.
        tol: relative error allowed per entry. Entries are approached from below. Entries that rounding cannot
            distinguish from 0 are 0.

    Returns:
        (m, m) symmetric, with a zero diagonal.
    """
    if not 0 < tol < 1:
        raise InputError(f"tol must lie between 0 and 1, but {tol!r} came")
    matrices = checked_factors(factors)
    count = len(matrices)
    whitened = whiten(matrices, checked_shares(shares, count), reference=reference, ridge=ridge)
    first, second = np.triu_indices(count, 1)
    result = np.zeros((count, count))
    result[first, second] = whitened.norms(first, second, tol=tol)
    return result + result.T


def whiten(
    factors: Sequence[FloatArray], shares: FloatArray, *, reference: ArrayLike | None = None, ridge: float = 0.0
) -> Whitened:
    """Return the clients' W_i = A_i (A + ridge tr(A)/d I)^-1 as a `Whitened` object, which computes distances."""
    width = factors[0].shape[1]
    if reference is None:
        moment = mean_moment(factors, shares)
    else:
        moment = float_array(reference, "the reference moment", ndim=2)
        if moment.shape != (width, width):
            raise InputError(
                f"the reference moment must be {width} x {width}, as the factors are, but {moment.shape} came"
            )
    return Whitened(factors, regularised_inverse(moment, ridge=ridge))
