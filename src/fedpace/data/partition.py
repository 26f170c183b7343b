"""Functions that split samples over clients: Dirichlet, iid and power-law partitions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import above, at_least, finite
from fedpace._base.errors import InputError

Parts = list[NDArray[np.int64]]
"""Sorted sample indices, one array per client."""


def dirichlet_partition(labels: NDArray[np.int64], clients: int, alpha: float, rng: np.random.Generator) -> Parts:
    """Split sample indices so that each client's label mix is drawn from Dirichlet(alpha).

    All clients get the same number of samples (within one), drawn without replacement by the client's label mix, as in
    the paper ("we sample the fraction of labels on each client from a Dirichlet"). When a class runs out, its fraction
    moves to the remaining classes, so every sample is used exactly once.
    """
    _check_alpha(alpha)
    stock = _stock(labels, clients, rng)
    return _deal(stock, rng.dirichlet(np.full(len(stock), alpha), size=clients), rng)


def dirichlet_split(
    train: NDArray[np.int64], test: NDArray[np.int64], clients: int, alpha: float, rng: np.random.Generator
) -> tuple[Parts, Parts]:
    """Split train and test labels like `dirichlet_partition`, with the same label mix per client for both."""
    _check_alpha(alpha)
    stocks = [_stock(labels, clients, rng) for labels in (train, test)]
    mixes = rng.dirichlet(np.full(max(map(len, stocks)), alpha), size=clients)
    dealt = [_deal(stock, mixes[:, : len(stock)], rng) for stock in stocks]
    return dealt[0], dealt[1]


def iid_partition(samples: int, clients: int, rng: np.random.Generator) -> Parts:
    """Split sample indices at random into equal parts, within one."""
    return sized_partition(samples, np.full(clients, 1 / max(clients, 1)), rng)


def power_law_shares(clients: int, exponent: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the clients' shares of the samples, proportional to rank^-exponent, in random order."""
    at_least(clients, 1, "clients of the power law")
    at_least(exponent, 0, "exponent of the power law")
    finite(exponent, "exponent of the power law")
    shares = np.arange(1, clients + 1, dtype=np.float64) ** -exponent
    return rng.permutation(shares / shares.sum())


def sized_partition(samples: int, shares: NDArray[np.float64], rng: np.random.Generator) -> Parts:
    """Split sample indices at random into parts of these shares, at least one sample each."""
    clients = len(shares)
    _check_samples(samples, clients)
    # One sample each, then the rest by largest remainders, so that the sizes sum to the number of samples.
    exact = shares * (samples - clients)
    sizes = np.floor(exact).astype(np.int64) + 1
    short = samples - int(sizes.sum())
    sizes[np.argsort(np.floor(exact) - exact, kind="stable")[:short]] += 1
    return [np.sort(part) for part in np.split(rng.permutation(samples), np.cumsum(sizes)[:-1])]


def _check_alpha(alpha: float) -> None:
    above(alpha, 0, "alpha of the Dirichlet split")
    finite(alpha, "alpha of the Dirichlet split")


def _check_samples(samples: int, clients: int) -> None:
    if not 1 <= clients <= samples:
        raise InputError(f"{samples} samples cannot be split over {clients} clients: each needs at least one")


def _stock(labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> list[list[int]]:
    """Return each class's sample indices in random order."""
    _check_samples(labels.size, clients)
    if labels.min() < 0:
        raise InputError(f"labels must be classes, 0 and above, but {labels.min()} came")
    classes = int(labels.max()) + 1
    return [rng.permutation(np.flatnonzero(labels == label)).tolist() for label in range(classes)]


def _deal(stock: list[list[int]], mixes: NDArray[np.float64], rng: np.random.Generator) -> Parts:
    """Distribute all samples: in each turn, every client draws one sample by its label mix."""
    samples, clients = sum(map(len, stock)), len(mixes)
    quota = np.full(clients, samples // clients)
    quota[: samples % clients] += 1
    parts: list[list[int]] = [[] for _ in range(clients)]
    left = np.array([len(items) > 0 for items in stock])
    # A new random order in each turn, so that no client always draws last.
    for turn in range(int(quota.max())):
        for client in rng.permutation(clients).tolist():
            if turn >= quota[client]:
                continue
            chances = np.where(left, mixes[client], 0.0)
            if chances.sum() <= 0:
                chances = left.astype(np.float64)
            # The same draw as `rng.choice`, without its slow checks.
            cumulative = (chances / chances.sum()).cumsum()
            label = int((cumulative / cumulative[-1]).searchsorted(rng.random(), side="right"))
            parts[client].append(stock[label].pop())
            left[label] = len(stock[label]) > 0
    return [np.sort(np.array(part, dtype=np.int64)) for part in parts]
