"""Optimal transport between two distributions: the cost of the best plan, and its gradient.

HiGHS solves the linear programme and its dual exactly. The dual potentials are the gradient: moving a little mass from
i' to i in p changes the cost by u_i - u_i' per unit, and likewise for q.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import FloatArray, float_array
from fedpace._base.errors import FedpaceError, InputError


@dataclass(frozen=True, eq=False)
class Transport:
    """The optimal transport from p to q."""

    value: float
    plan: FloatArray
    """(n, m) mass moved from each i to each j; rows sum to p, columns to q."""
    source: FloatArray
    """(n,) potentials u with u_i + v_j <= cost_ij and p.u + q.v = value: the gradient in p along the simplex."""
    target: FloatArray
    """(m,) potentials v: the gradient in q along the simplex."""


def transport_cost(p: ArrayLike, q: ArrayLike, cost: ArrayLike) -> Transport:
    """Return the optimal transport from p (n,) to q (m,) with ground cost (n, m)."""
    from scipy import sparse  # imported here, so that `import fedpace` stays light
    from scipy.optimize import linprog

    start, end, price = float_array(p, "p"), float_array(q, "q"), float_array(cost, "cost", ndim=2)
    n, m = price.shape
    if start.size != n or end.size != m:
        raise InputError(f"a cost of {n} x {m} needs p of {n} and q of {m}, but {start.size} and {end.size} came")
    if not price.size:
        raise InputError(f"there is nothing to carry: the cost is {n} x {m}")
    if min(start.min(), end.min()) < 0 or max(abs(start.sum() - 1), abs(end.sum() - 1)) > 1e-6:
        raise InputError("p and q must be at least 0 and sum to 1")
    # Rounding must not make the two masses differ: the programme would be infeasible.
    masses = np.concatenate([start / start.sum(), end / end.sum()])
    leaves = sparse.kron(sparse.eye(n), np.ones((1, m)))
    arrives = sparse.kron(np.ones((1, n)), sparse.eye(m))
    # The last equation follows from the others; dropping it makes rounding in the masses harmless.
    equations = sparse.vstack([leaves, arrives], format="csr")[:-1]
    solved = linprog(price.ravel(), A_eq=equations, b_eq=masses[:-1], bounds=(0, None), method="highs")
    if solved.status != 0:
        raise FedpaceError(f"the transport programme of {n} x {m} was not solved: {solved.message}")
    dual = np.append(solved.eqlin.marginals, 0.0)
    return Transport(float(solved.fun), solved.x.reshape(n, m), dual[:n], dual[n:])
