"""Largest eigenvalues of many small operators at once, by block Lanczos in step (Golub and Van Loan, section 10.3.6).

The operators are K_p H_p, p = 1..P, with K_p and H_p symmetric and positive semi-definite, so K_p H_p is self-adjoint
in the inner product x'H_p y. Leading eigenvalues of differences of moments lie close together, so that power iteration
needs over a hundred steps. Lanczos with one vector needs about ten, but in a few pairs of a hundred it settles on the
second singular value (errors of 1 to 6 %, which no residual test can see, measured on the paper's Quadratic data): a
block of vectors, some of them close to the leading directions of either client, does not.

Stopping and error: Ritz values approach the eigenvalue from below; a problem stops when a step raised its Ritz value by
less than `tol`, relatively, and leaves the batch. The next steps would gain less, so the error is about tol; the tests
and benchmarks/heterogeneity.py compare it with full decompositions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import BoolArray, FloatArray, IntArray

Blocks = NDArray[Any]
"""(P, b, n) float32 or float64: b vectors a problem."""

COMPACT_BELOW = 0.75
"""Converged problems leave the batch once fewer than this fraction still runs: copying has a cost too."""


FIRST_LOOK = 3
"""Step of the first Ritz value: none converges earlier, and looking costs a small decomposition."""


class Operators(Protocol):
    """P operators x -> K_p H_p x that share their work."""

    def metric(self, blocks: Blocks) -> Blocks:
        """Return H_p applied to every vector; the argument itself where H is the identity."""
        ...

    def apply(self, blocks: Blocks) -> Blocks:
        """Return K_p applied to every vector, in a new array."""
        ...

    def restrict(self, keep: BoolArray) -> Operators:
        """Return the operators of the problems kept, in order."""
        ...


@dataclass(frozen=True, eq=False)
class TopEigenvalues:
    """The largest eigenvalue of every problem."""

    values: FloatArray
    """(P,) from below."""
    last_gain: FloatArray
    """(P,) by what fraction the last step raised the value."""
    steps: IntArray
    """(P,) steps taken, each applying the operator to a whole block."""


def top_eigenvalues(operators: Operators, start: Blocks, *, tol: float, max_steps: int) -> TopEigenvalues:
    """Run block Lanczos on all problems until a step gains less than `tol`, or `max_steps` are done."""
    count, block, size = start.shape
    values, gains, steps = np.zeros(count), np.full(count, np.inf), np.zeros(count, dtype=np.int64)
    rows = np.arange(count)
    # A block as wide as the space leaves nothing to iterate on; one step more than fills it settles the rest.
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
            # Grown in portions: room for every possible step would outweigh the vectors themselves.
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
            values[rows], gains[rows], steps[rows] = theta, gain, step
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
    return TopEigenvalues(values=values, last_gain=gains, steps=steps)


def _orthonormal(w: Blocks, image: Blocks) -> tuple[Blocks, Blocks, FloatArray]:
    """Return v with w = c'v, v H v' = I on the directions that w has, its image H v, and the coupling c.

    By the Gram matrix, whose small eigenvalues are noise: such directions become zero vectors, which add nothing.
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
