"""Generalised inverse of a second moment, robust to dead features and to features of very different scale.

The paper inverts A = sum_i w_i A_i, which fails if a unit is dead or if batches are smaller than the layer
(docs/errata.md, C2). The pseudo-inverse is exact for directions in which no client has energy, because null(A) is then
the intersection of all null(A_i).

The rank is decided on the correlation matrix C = D^-1 A D^-1, D = diag(A)^(1/2), and not on A itself. A feature
measured in micrometres is small without being redundant, and a cutoff on the eigenvalues of A would drop it.
"""

from __future__ import annotations

import numpy as np

from fedpace._base.checks import FloatArray, at_least, finite, float_array
from fedpace._base.errors import InputError

FAINT, FAINTEST = 1e-200, 1e-250
"""A feature with less energy counts as dead: relative to the strongest feature, and in absolute terms. Its inverse
would overflow. Without this limit, a client with 1e-155 in a feature that is dead for all would get infinite
distances."""


def regularised_inverse(moment: FloatArray, *, ridge: float = 0.0) -> FloatArray:
    """Return (A + ridge tr(A)/d I)^-1, or the Moore-Penrose inverse if that matrix is singular.

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
