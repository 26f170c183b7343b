"""Feature heterogeneity between clients: B_ij = ||(A_i - A_j) A^-1||_2 of the DelayHet paper, and our Gram matrix G.

A_i = E[x x'] is client i's uncentred second moment of last-layer features (docs/errata.md, C1), and A = sum_j w_j A_j.
Where we depart from the paper:

- The norm is the largest singular value. (A_i - A_j) A^-1 is not symmetric, so eigenvalues underestimate it (B4).
- If A is singular, it is pseudo-inverted or gets a ridge (C2, `regularised_inverse`). The paper inverts A, which fails
  if a unit is dead or if batches are smaller than the layer.
- A weights clients by their share of the objective (C11).
- No d x d matrix is formed or decomposed per pair (B9): `fedpace.numerics.whitened` computes the norms.

The Gram matrix of moment matching says how well a weighted set of clients matches the population. With M_i = (Z_i -
Z)(Z + ridge tr(Z)/D I)^-1 in D dimensions, weights a have the typical relative gradient error rho(a) = |sum_i a_i
M_i|_F^2 / D = a'Ga, with G_ij = <M_i, M_j>_F / D. The Frobenius norm over sqrt(D) is the error in an average direction,
whereas B_ij is the error in the worst direction. Moment matching needs only G.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import FloatArray, at_least, finite, float_array, listed, of_ordinary_size
from fedpace._base.checks import shares as checked_shares
from fedpace._base.errors import InputError
from fedpace.numerics.count_sketch import CountSketch
from fedpace.numerics.whitened import Whitened

FAINT, FAINTEST = 1e-200, 1e-250
"""A feature with less energy counts as dead: relative to the strongest feature, and in absolute terms. Its inverse
would overflow. Without this limit, a client with 1e-155 in a feature that is dead for all would get infinite
distances."""


def regularised_inverse(moment: FloatArray, *, ridge: float = 0.0) -> FloatArray:
    """Return (A + ridge tr(A)/d I)^-1, or the Moore-Penrose inverse if that matrix is singular.

    The pseudo-inverse is exact for directions in which no client has energy, because null(A) is then the intersection
    of all null(A_i). The rank is decided on the correlation matrix C = D^-1 A D^-1, D = diag(A)^(1/2), and not on A
    itself. A feature measured in micrometres is small without being redundant, and a cutoff on the eigenvalues of A
    would drop it.

    >>> import numpy as np
    >>> regularised_inverse(np.diag([4.0, 0.0]))
    array([[0.25, 0.  ],
           [0.  , 0.  ]])
    """
    moment = float_array(moment, "a second moment", ndim=2)
    width = moment.shape[0]
    if moment.ndim != 2 or moment.shape != (width, width):
        raise InputError(f"a second moment is a square matrix, but an array of shape {moment.shape} came")
    at_least(ridge, 0, "ridge")
    finite(ridge, "ridge")
    diagonal = np.diag(moment).copy()
    top = float(diagonal.max(initial=0.0))
    if diagonal.min(initial=0.0) < 0 or not np.allclose(moment, moment.T, rtol=1e-8, atol=1e-12 * top):
        raise InputError("a second moment is symmetric with a diagonal of at least 0: build it as F'F")
    if top <= FAINTEST:
        return np.zeros_like(moment)
    loaded = (moment + moment.T) / 2
    loaded[np.diag_indices(width)] += ridge * diagonal.mean()
    inverse = np.zeros_like(moment)
    alive = np.flatnonzero(np.diag(loaded) > max(FAINT * top, FAINTEST))
    inverse[np.ix_(alive, alive)] = _inverse(loaded[np.ix_(alive, alive)])
    return inverse


def _inverse(moment: FloatArray) -> FloatArray:
    """Return the pseudo-inverse of a matrix with a positive diagonal."""
    scale = np.sqrt(np.diag(moment))
    values, vectors = np.linalg.eigh(moment / scale / scale[:, None])
    kept = values > values[-1] * len(values) * np.finfo(np.float64).eps * 4
    half = vectors[:, kept] / np.sqrt(values[kept]) / scale[:, None]
    inverse: FloatArray = half @ half.T
    if not kept.all():
        # D^-1 C^+ D^-1 inverts A on its range, but not orthogonally to it: project to get the Moore-Penrose inverse.
        basis, _ = np.linalg.qr(vectors[:, kept] * scale[:, None])
        inverse = basis @ (basis.T @ inverse @ basis) @ basis.T
    return (inverse + inverse.T) / 2


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
