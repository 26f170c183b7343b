"""Small pieces that several schemes share."""

from __future__ import annotations

import math

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.errors import InputError
from fedpace.core.types import View


def check_k(k: int, clients: int, scheme: str) -> None:
    """Refuse a cohort larger than the roster: a mistake in the configuration, not a bad moment."""
    if k > clients:
        only = "is only 1" if clients == 1 else f"are only {clients}"
        raise InputError(f"{scheme} is asked for k = {k} clients, but there {only}: lower k or add clients")


def cohort_size(k: int, view: View, scheme: str) -> int:
    """Return how many clients to take: `k`, or all that are available when fewer are reachable just now."""
    check_k(k, view.clients, scheme)
    return min(k, int(view.candidates.size))


def over_asked(wanted: int, overcommit: float, reachable: int) -> int:
    """Return how many to ask where `wanted` of them are to answer: overcommit x wanted, or all that can be reached."""
    return min(math.ceil(overcommit * wanted - 1e-9), reachable)  # 1.3 x 10 must not become 14 by rounding


def draw_multiset(
    rows: IntArray, probabilities: FloatArray, k: int, rng: np.random.Generator
) -> tuple[IntArray, FloatArray]:
    """Draw `k` of `rows` with replacement: who was drawn (each once), and its multiplicity / k."""
    drawn, counts = np.unique(rng.choice(rows, size=k, replace=True, p=probabilities), return_counts=True)
    return drawn, counts / k
