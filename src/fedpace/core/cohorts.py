"""Small helpers for cohort sizes and draws that several schemes share."""

from __future__ import annotations

import math

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.errors import InputError
from fedpace.core.types import View


def check_k(k: int, clients: int, scheme: str) -> None:
    """Raise InputError if `k` exceeds the number of all clients, which is a mistake in the configuration."""
    if k > clients:
        only = "is only 1" if clients == 1 else f"are only {clients}"
        raise InputError(f"{scheme} is asked for k = {k} clients, but there {only}: lower k or add clients")


def cohort_size(k: int, view: View, scheme: str) -> int:
    """Return the cohort size: `k`, or the number of available clients if that is smaller."""
    check_k(k, view.clients, scheme)
    return min(k, int(view.candidates.size))


def over_asked(wanted: int, overcommit: float, reachable: int) -> int:
    """Return how many clients to start so that `wanted` answer: overcommit * wanted, but at most `reachable`."""
    return min(math.ceil(overcommit * wanted - 1e-9), reachable)  # rounding errors must not turn 1.3 * 10 into 14


def draw_multiset(
    rows: IntArray, probabilities: FloatArray, k: int, rng: np.random.Generator
) -> tuple[IntArray, FloatArray]:
    """Draw `k` of `rows` with replacement; return the distinct rows and, for each, its number of draws / k."""
    drawn, counts = np.unique(rng.choice(rows, size=k, replace=True, p=probabilities), return_counts=True)
    return drawn, counts / k
