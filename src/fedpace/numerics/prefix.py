"""Exact minimisation of max delay / (1 - 2 h(S)^2) over sets S of clients, by one scan.

The DelayHet paper minimises g(S) = max_{i in S} tau_i / (1 - B_S), with B_S = 2 h(S)^2 and h(S) = sum_j w_j min_{i in
S} B_ij, by a solver for submodular functions. g is not submodular and needs no such solver (docs/errata.md, A1, A2,
A8). For a given largest delay, adding a client that is not slower cannot raise h, so some prefix of the clients sorted
by delay is optimal. The scan keeps a running column minimum and takes O(m^2). Sets with 1 - B_S <= 0, for which the
paper's bound says nothing, are infeasible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import FloatArray, IntArray, float_array, frozen
from fedpace._base.checks import delays as checked_delays
from fedpace._base.checks import shares as checked_shares
from fedpace._base.errors import InfeasibleError, InputError


@dataclass(frozen=True, eq=False)
class PrefixSolution:
    """The clients to wait for, their weights, and the objective."""

    clients: IntArray
    """(k,) rows, fastest first."""
    weights: FloatArray
    """(k,) total share of the clients that each member represents; positive, sums to 1."""
    heterogeneity: float
    """h(S) = sum_j share_j min_{i in S} B_ij."""
    bound: float
    """B_S = 2 h(S)^2, below 1."""
    objective: float
    """delay / (1 - bound)."""
    delay: float
    """The largest delay in the set."""

    @staticmethod
    def of_set(members: IntArray, weights: FloatArray, delay: FloatArray, heterogeneity: float) -> PrefixSolution:
        """Return the solution for a set of rows, fastest first; members that represent no client are left out."""
        kept = weights > 0
        slowest, bound = float(delay[members[kept]].max()), 2 * heterogeneity * heterogeneity
        return PrefixSolution(
            clients=frozen(members[kept], np.int64),
            weights=frozen(weights[kept] / weights.sum()),
            heterogeneity=heterogeneity,
            bound=bound,
            objective=slowest / (1 - bound),
            delay=slowest,
        )


def best_prefix(
    B: ArrayLike,
    delay: ArrayLike,
    *,
    shares: ArrayLike | None = None,
    max_clients: int | None = None,
    candidates: ArrayLike | None = None,
) -> PrefixSolution:
    """Return the set S that minimises max_{i in S} delay_i / (1 - 2 h(S)^2), and the weight of each member.

    Every client is represented by its nearest member. Ties go to the fastest member, then to the lowest row. A member's
    weight is the total share of the clients that it represents. A member with weight 0 (with share 0, or at distance 0
    from a faster member) is left out: it would train in vain, and h and the weights stay the same.

    Clients with equal delay enter together, because one more of them costs no time. The result therefore does not
    depend on the order of clients, up to exact ties in B. Among prefixes with equal objective, the smallest is taken.

    Args:
        B: (m, m) heterogeneity: how badly client i (row) represents client j (column). NaN is allowed where it has no
            effect: in rows that are not candidates and in columns with share 0.
        delay: (m,) seconds; NaN is allowed for clients that are not candidates.
        shares: weights of the clients in the objective; equal if None.
        max_clients: longest prefix to consider. Among sets of bounded size, a prefix need not be optimal, so the result
            is only the best short prefix. A group of equal delays that does not fit is cut after its most central
            clients (smallest sum_j share_j B_ij), then by row.
        candidates: rows or mask of the clients that may be chosen; all clients stay in the population. None = all.

    Raises:
        InfeasibleError: no admissible prefix has 2 h^2 < 1.
    """
    matrix = float_array(B, "B", ndim=2, finite=False)
    count = matrix.shape[0]
    if matrix.shape != (count, count):
        raise InputError(f"B must be square, one row and one column per client, but it has shape {matrix.shape}")
    weight = checked_shares(shares, count)
    rows = candidate_rows(candidates, count)
    tau = float_array(delay, "delays", finite=False)
    if tau.size != count:
        raise InputError(f"expected {count} delays, one per client, but {tau.size} came")
    checked_delays(tau[rows], name=lambda index: f"client {rows[index]}")
    used = np.flatnonzero(weight > 0)
    block = matrix[np.ix_(rows, used)]
    if not (np.isfinite(block) & (block >= 0)).all():
        i, j = np.argwhere(~(np.isfinite(block) & (block >= 0)))[0]
        raise InputError(
            f"B must be finite and at least 0, but B[{rows[i]}, {used[j]}] is {block[i, j]}: leave client {rows[i]} "
            f"out of the candidates or give client {used[j]} the share 0 if their moments are unknown"
        )
    found = scan_prefixes(block, tau[rows], weight[used], max_clients=max_clients)
    return PrefixSolution(
        clients=frozen(rows[found.clients], np.int64),
        weights=found.weights,
        heterogeneity=found.heterogeneity,
        bound=found.bound,
        objective=found.objective,
        delay=found.delay,
    )


def scan_prefixes(
    block: FloatArray, delay: FloatArray, shares: FloatArray, *, max_clients: int | None = None
) -> PrefixSolution:
    """Return the best prefix for a rectangular B (rows: may be chosen, columns: population), without input checks."""
    if max_clients is not None and max_clients < 1:
        raise InputError(f"max_clients must be at least 1, but {max_clients!r} came")
    limit = len(delay) if max_clients is None else min(max_clients, len(delay))
    centrality = block @ shares if limit < len(delay) else np.zeros(len(delay))
    order = np.lexsort((centrality, delay))
    nearest = np.full(block.shape[1], math.inf)
    best, best_length, least = math.inf, 0, math.inf
    for position, row in enumerate(order[:limit]):
        if delay[row] >= best:
            break  # the denominator is at most 1, so no slower prefix can be better
        np.minimum(nearest, block[row], out=nearest)
        if position + 1 < limit and delay[order[position + 1]] == delay[row]:
            continue
        h = float(nearest @ shares)
        least = min(least, h)
        margin = 1.0 - 2.0 * h * h
        if margin > 0 and delay[row] / margin < best:
            best, best_length = float(delay[row]) / margin, position + 1
    if not best_length:
        raise InfeasibleError(
            f"no set is feasible: 2 h^2 must be below 1, but with {limit} candidates h is {least:.4g} and 2 h^2 is "
            f"{2 * least * least:.4g}; add candidates, raise the ridge, or rescale B by a target below 0.7071"
        )
    return solution_of_set(block, delay, shares, order[:best_length])


def solution_of_set(block: FloatArray, delay: FloatArray, shares: FloatArray, members: IntArray) -> PrefixSolution:
    """Return the weights and objective of given rows of a rectangular B, feasible or not, without input checks."""
    members = members[np.lexsort((members, delay[members]))]
    proxy = np.argmin(block[members], axis=0)  # ties: the fastest, then the lowest row
    weights: FloatArray = np.bincount(proxy, weights=shares, minlength=len(members)).astype(np.float64)
    return PrefixSolution.of_set(members, weights, delay, float(block[members].min(axis=0) @ shares))


def candidate_rows(candidates: ArrayLike | None, count: int) -> IntArray:
    """Return the rows given by a mask, by a list of rows, or by None for all; ascending and unique."""
    if candidates is None:
        return np.arange(count)
    array = np.asarray(candidates)
    if array.dtype == np.bool_:
        if array.shape != (count,):
            raise InputError(f"a mask of candidates must have shape ({count},), but it has {array.shape}")
        rows = np.flatnonzero(array)
    else:
        if array.size and not np.issubdtype(array.dtype, np.integer):
            raise InputError(f"candidates must be rows or a mask, but an array of {array.dtype} came")
        rows = np.unique(array.astype(np.int64))
        if rows.size and not (rows[0] >= 0 and rows[-1] < count):
            raise InputError(f"candidates must be rows from 0 to {count - 1}, but {rows[0]} and {rows[-1]} came")
    if not rows.size:
        raise InfeasibleError("no set is feasible: there is no candidate; make at least one client available")
    return rows
