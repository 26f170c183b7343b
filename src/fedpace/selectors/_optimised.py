"""Draws cohorts from an optimised distribution; shared by `moment-sampling` and `delayhet-transport`."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from fedpace._base.checks import FloatArray, IntArray, shares
from fedpace.core.rounds import draw_multiset
from fedpace.core.types import Cohort, Diagnostics
from fedpace.numerics.round_time import expected_max

Facts = dict[str, float | int | str | bool | None]


def cohort_from(
    rows: IntArray,
    p: FloatArray,
    share: FloatArray,
    delay: FloatArray,
    k: int,
    bound: float,
    facts: Facts,
    rng: np.random.Generator,
) -> Cohort:
    """Return a cohort of k draws with replacement from p; if no distribution makes progress, draw by shares instead.

    If all candidates have share 0, the fallback is uniform.
    """
    feasible = bound < 1
    q = p if feasible else shares(share if share.any() else None, share.size)
    seconds = expected_max(q, delay, k).value
    clients, weights = draw_multiset(rows, q, k, rng)
    return Cohort(
        clients,
        weights,
        why=Diagnostics(
            objective=seconds / (1 - bound) if feasible else None,
            predicted_seconds=seconds,
            status="ok" if feasible else f"infeasible: B_p >= 1 for every distribution with k = {k}; drawn by shares",
            facts={"B_p": bound, "effective_clients": float(1 / np.square(q).sum()), **facts},
            reasons={
                int(row): f"drawn {round(weight * k)} of {k} times, probability {q[rows == row][0]:.3g}"
                for row, weight in zip(clients, weights, strict=True)
            },
        ),
    )


def remember_last(solve: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate `solve` to cache its last four results: the problem often stays the same from round to round.

    `solve` must be a pure function of arrays and hashable options. It receives read-only float64 arrays.
    """

    @lru_cache(maxsize=4)
    def remembered(shapes: tuple[tuple[int, ...], ...], data: tuple[bytes, ...], options: tuple[Any, ...]) -> Any:
        arrays = (np.frombuffer(part).reshape(shape) for shape, part in zip(shapes, data, strict=True))
        return solve(*arrays, *options)

    def call(*arguments: Any) -> Any:
        arrays = [np.ascontiguousarray(a, dtype=np.float64) for a in arguments if isinstance(a, np.ndarray)]
        options = tuple(a for a in arguments if not isinstance(a, np.ndarray))
        return remembered(tuple(a.shape for a in arrays), tuple(a.tobytes() for a in arrays), options)

    return call
