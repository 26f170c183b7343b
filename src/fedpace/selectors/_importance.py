"""Importance sampling with replacement from an optimised distribution q; shared by two schemes."""

from __future__ import annotations

import warnings

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace.core.types import Cohort, Diagnostics, View
from fedpace.numerics.round_time import expected_max
from fedpace.numerics.sampling import best_sampling, sampling_cost


def gradient_norms(view: View, rows: IntArray, share: FloatArray) -> FloatArray:
    """Return the gradient norms G of `rows`, divided by their root mean square under the shares.

    A norm is that of the client's last update sketch. A client without a sketch gets the median of the others. The
    scaling makes the option c independent of the learning rate, the number of local steps and the sketch.
    """
    norms = np.full(rows.size, np.nan) if view.updates is None else np.linalg.norm(view.updates[rows], axis=1)
    known = np.isfinite(norms)
    norms[~known] = np.median(norms[known]) if known.any() else 1.0
    scale = float(np.sqrt(share @ np.square(norms)))
    return norms / scale if scale > 0 else np.ones(rows.size)


def floors(share: FloatArray, floor: float) -> FloatArray:
    """Return each client's smallest probability: `floor` / clients, or 0 for clients with share 0."""
    return np.where(share > 0, floor / share.size, 0.0)


def solve(a: FloatArray, delay: FloatArray, c: float, least: FloatArray, solver: str, max_iter: int) -> FloatArray:
    """Return the q that minimises (q.t)(sum a / q + c): exact, or as far as trust-constr gets from a uniform start."""
    if solver == "exact" or a.size == 1:
        return best_sampling(a, delay, c=c, floor=least)
    from scipy.optimize import Bounds, LinearConstraint, minimize

    t = delay / (float(delay.max()) or 1.0)
    inside = np.maximum(least, 1e-7)  # the authors' bound, for clients without a floor

    def value(q: FloatArray) -> tuple[float, FloatArray]:
        q = np.maximum(q, inside)
        spread = float((a / q).sum()) + c
        return float(sampling_cost(q, a, t, c)), t * spread - (q @ t) * a / np.square(q)

    with warnings.catch_warnings():
        # trust-constr warns if it stops early or if the objective looks linear; both are expected here.
        warnings.simplefilter("ignore", UserWarning)
        found = minimize(
            value,
            np.full(a.size, 1 / a.size),
            jac=True,
            method="trust-constr",
            bounds=Bounds(inside, 1),
            constraints=LinearConstraint(np.ones((1, a.size)), 1, 1),
            options={"maxiter": max_iter},
        )
    q = np.maximum(found.x, inside)
    return np.asarray(q / q.sum())


def importance_cohort(
    view: View,
    rows: IntArray,
    q: FloatArray,
    share: FloatArray,
    *,
    k: int,
    clip: float,
    rng: np.random.Generator,
    why: Diagnostics,
) -> Cohort:
    """Return a cohort of k draws with replacement from q.

    A client drawn m times has weight m share / (k q), cut at `clip` if that is above 0. The cohort's diagnostics extend
    `why` by the facts that these schemes share.
    """
    drawn, counts = np.unique(rng.choice(rows.size, size=k, p=q), return_counts=True)
    weights = counts * share[drawn] / (k * q[drawn])
    cut = int((weights > clip).sum()) if clip else 0
    if clip:
        weights = np.minimum(weights, clip)
    facts = {
        **why.facts,
        "effective_clients": float(1 / np.square(q).sum()),
        "least_probability": float(q.min()),
        "sum_of_weights": float(weights.sum()),
        "clipped": cut,
    }
    reasons = {
        int(rows[i]): f"drawn {n} of {k} times, probability {q[i]:.3g}" for i, n in zip(drawn, counts, strict=True)
    }
    seconds = float(expected_max(q, view.delay[rows], k).value)
    why = Diagnostics(why.objective, seconds, why.status, facts, reasons)
    return Cohort(rows[drawn], weights, mode="delta", why=why)
