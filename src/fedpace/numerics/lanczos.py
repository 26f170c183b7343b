"""Largest eigenvalues of many small operators at once, by block Lanczos (Golub and Van Loan, section 10.3.6).

The operators are K_p H_p, p = 1..P, with K_p and H_p symmetric and positive semi-definite, so that K_p H_p is
self-adjoint in the inner product x'H_p y. Leading eigenvalues of differences of moments lie close together, so that
power iteration needs over a hundred steps. Lanczos with one vector needs about ten. But for a few percent of the pairs
it converges to the second singular value, with errors of 1 to 6 % that no residual test detects (measured on the
paper's Quadratic data). A block of vectors, some of them close to the leading directions of either client, avoids this.

Stopping and error: Ritz values approach the eigenvalue from below. A problem stops and leaves the batch when a step
raises its Ritz value by less than the fraction `tol`. Later steps would gain less, so the error is about tol; the tests
and benchmarks/heterogeneity.py compare it with full decompositions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import BoolArray, FloatArray, IntArray

Blocks = NDArray[Any]
"""(P, b, n) float32 or float64: b vectors per problem."""

COMPACT_BELOW = 0.75
"""Converged problems leave the batch once fewer than this fraction still runs, because copying has a cost."""


FIRST_LOOK = 3
"""Step of the first Ritz value: none converges earlier, and computing one costs a small decomposition."""


class Operators(Protocol):
    """P operators x -> K_p H_p x, applied together."""

    def metric(self, blocks: Blocks) -> Blocks:
        """Return H_p applied to every vector; the argument itself if H is the identity."""
        ...

    def apply(self, blocks: Blocks) -> Blocks:
        """Return K_p applied to every vector, in a new array."""
        ...

    def restrict(self, keep: BoolArray) -> Operators:
        """Return the operators of the kept problems, in order."""
        ...


@dataclass(frozen=True, eq=False)
class TopEigenvalues:
    """The largest eigenvalue of every problem."""

    values: FloatArray
    """(P,) eigenvalues, approached from below."""
    steps: IntArray
    """(P,) steps taken; each applies the operator to a whole block."""


def top_eigenvalues(operators: Operators, start: Blocks, *, tol: float, max_steps: int) -> TopEigenvalues:
    """Return the largest eigenvalues by block Lanczos; stop when a step gains less than `tol`, or at `max_steps`."""
    count, block, size = start.shape
    values, steps = np.zeros(count), np.zeros(count, dtype=np.int64)
    rows = np.arange(count)
    # A block as wide as the space needs no iteration; one step beyond filling the space is enough.
    limit = min(max_steps, -(-size // block) + 1)
    v, p, _ = _orthonormal(start, operators.metric(start))
    before = np.zeros_like(v)
    coupling = np.zeros((count, block, block))
    projected = np.zeros((count, 0, 0))
    theta, scratch = np.zeros(count), np.empty_like(v)
    for step in range(1, limit + 1):
        w = operators.apply(p)
        diagonal = np.matmul(w, p.swapaxes(1, 2)).astype(np.float64)
        diagonal = (diagonal + diagonal.swapaxes(1, 2)) / 2
        end, begin = step * block, (step - 1) * block
        if end > projected.shape[1]:
            # Grown in portions: space for all possible steps would take more memory than the vectors.
            grown = np.zeros((len(rows), *(min(limit, step + 5) * block,) * 2))
            grown[:, :begin, :begin] = projected[:, :begin, :begin]
            projected = grown
        projected[:, begin:end, begin:end] = diagonal
        if step > 1:
            projected[:, begin:end, begin - block : begin] = coupling
            projected[:, begin - block : begin, begin:end] = coupling.swapaxes(1, 2)
        done = np.zeros(len(rows), dtype=np.bool_)
        if step >= min(FIRST_LOOK, limit):
            now = np.maximum(np.linalg.eigvalsh(projected[:, :end, :end])[:, -1], 0.0)
            gain = np.divide(now - theta, now, out=np.zeros(len(rows)), where=now > 0)
            theta = np.maximum(now, theta)
            values[rows], steps[rows] = theta, step
            done = gain <= tol
            if step == limit or done.all():
                break
        if scratch.shape != w.shape:
            scratch = np.empty_like(w)
        w -= np.matmul(diagonal.astype(w.dtype), v, out=scratch)
        if step > 1:
            w -= np.matmul(coupling.astype(w.dtype), before, out=scratch)
        if done.mean() > 1 - COMPACT_BELOW:
            keep = ~done
            operators, rows, theta = operators.restrict(keep), rows[keep], theta[keep]
            v, w, projected = v[keep], w[keep], projected[keep]
        before = v
        v, p, coupling = _orthonormal(w, operators.metric(w))
    return TopEigenvalues(values=values, steps=steps)


def _orthonormal(w: Blocks, image: Blocks) -> tuple[Blocks, Blocks, FloatArray]:
    """Return v with w = c'v and v H v' = I on the directions of w, its image H v, and the coupling c.

    The Gram matrix gives them. Directions with a small eigenvalue are noise and become zero vectors, which add nothing.
    """
    gram = np.matmul(w, image.swapaxes(1, 2)).astype(np.float64)
    values, vectors = np.linalg.eigh((gram + gram.swapaxes(1, 2)) / 2)
    floor = 1e-4 if w.dtype == np.float32 else 1e-11
    kept = (values > floor * values[:, -1:]) & (values > 0)
    root = np.sqrt(np.where(kept, values, 0.0))
    inverse = np.divide(1.0, root, out=np.zeros_like(root), where=kept)
    turn = (vectors * inverse[:, None, :]).swapaxes(1, 2).astype(w.dtype)
    coupling = root[:, :, None] * vectors.swapaxes(1, 2)
    v = np.matmul(turn, w)
    return v, (v if image is w else np.matmul(turn, image)), coupling
