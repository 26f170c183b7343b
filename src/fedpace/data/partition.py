"""Ways to spread labelled samples over clients. Every partition is a function of the labels and a generator."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedpace.core.checks import above, finite
from fedpace.core.errors import InputError


def dirichlet_partition(
    labels: NDArray[np.int64], clients: int, alpha: float, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Split sample indices so that each client's label mix is a draw from Dirichlet(alpha).

    All clients get the same number of samples (within one), each drawn without replacement by the client's own mix,
    as in the paper ("we sample the fraction of labels on each client from a Dirichlet"). When a class runs out, its
    fraction moves to the classes that are left, so every sample is used exactly once.
    """
    above(alpha, 0, "alpha of the Dirichlet split")
    finite(alpha, "alpha of the Dirichlet split")
    if not 1 <= clients <= labels.size:
        raise InputError(f"{labels.size} samples cannot be split over {clients} clients: each needs at least one")
    if labels.min() < 0:
        raise InputError(f"labels must be classes, 0 and above, but {labels.min()} came")
    classes = int(labels.max()) + 1
    stock = [rng.permutation(np.flatnonzero(labels == label)).tolist() for label in range(classes)]
    mixes = rng.dirichlet(np.full(classes, alpha), size=clients)
    quota = np.full(clients, labels.size // clients)
    quota[: labels.size % clients] += 1
    parts: list[list[int]] = [[] for _ in range(clients)]
    # One sample a turn, clients in a fresh order each turn: nobody is left with only what the others did not want.
    for turn in range(int(quota.max())):
        for client in rng.permutation(clients).tolist():
            if turn >= quota[client]:
                continue
            left = np.array([len(items) > 0 for items in stock])
            chances = np.where(left, mixes[client], 0.0)
            if chances.sum() <= 0:
                chances = left.astype(np.float64)
            label = int(rng.choice(classes, p=chances / chances.sum()))
            parts[client].append(stock[label].pop())
    return [np.sort(np.array(part, dtype=np.int64)) for part in parts]
