"""The fastest clients whose mixture resembles the population: what `moment-match` and `pace` share.

A client is a point whose distance from the origin says how far its moment is from the population's; a mixture of
clients is as good as its weighted sum is short. The clients that are fast enough for a round of tau seconds form a
prefix of the delay order, so that one scan over prefixes shows all there is to choose from: the frontier.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.errors import InputError
from fedpace.core.types import Table, View
from fedpace.numerics.simplex import Mixture, prefix_lengths, prefix_mixtures

NEGLIGIBLE = 1e-4
"""A client with less weight than this is not bothered."""
SHOWN = 12
"""Rows of the frontier that are recorded."""


@dataclass(frozen=True)
class Point:
    """One prefix of the frontier."""

    prefix: int
    """Clients that are fast enough."""
    clients: int
    """Those of them with a weight."""
    seconds: float
    error: float
    """Relative squared error of the gradient, calibrated."""
    predicted: float
    """seconds / (1 - error); infinite where the error is 1 or more."""


@dataclass(frozen=True, eq=False)
class Match:
    """The chosen prefix, as a cohort."""

    clients: IntArray
    """Rows of the View, ascending."""
    weights: FloatArray
    chosen: Point
    frontier: tuple[Point, ...]
    feasible: bool
    """Whether any prefix had an error below 1. If not, this is the mixture with the least."""

    def table(self) -> Table:
        """Return the frontier as rows (prefix, clients, seconds, error, predicted), the chosen one among them."""
        points = list(self.frontier)
        if len(points) > SHOWN:
            places = np.unique(np.geomspace(1, len(points), SHOWN).astype(int) - 1).tolist()
            points = [point for place, point in enumerate(points) if place in places or point is self.chosen]
        return tuple(
            (p.prefix, p.clients, p.seconds, p.error, p.predicted if math.isfinite(p.predicted) else None)
            for p in points
        )


def population_points(view: View, *, ridge: float, scheme: str) -> FloatArray:
    """Return one point per client, whose inner products are the whitened Gram matrix; NaN where it is unknown."""
    if view.moments is None:
        raise InputError(f"{scheme} needs feature moments, but no client has reported any")
    return view.moments.directions(ridge=ridge, shares=view.share)


def match_population(
    view: View, points: FloatArray, *, own: float = 0.0, least: int = 1, max_clients: int = 0
) -> Match:
    """Choose the prefix with the least seconds / (1 - squared length of its best mixture).

    Args:
        view: whom to choose from, and their delays.
        points: (n, r) one row per client.
        own: squared length of each client's own coordinate, which only averaging over more clients shortens.
        least: clients that a mixture must have, where there are that many.
        max_clients: most clients in a mixture; 0 = no limit.
    """
    rows = view.candidates
    order = rows[np.lexsort((rows, view.delay[rows]))]
    best: tuple[Mixture, Point] | None = None
    last: tuple[Mixture, Point] | None = None
    frontier: list[Point] = []
    lengths = list(prefix_lengths(order.size))
    mixtures = prefix_mixtures(points[order], np.arange(order.size), lengths, own=own, max_clients=max_clients or None)
    for length in lengths:
        seconds = float(view.delay[order[length - 1]])
        if best is not None and seconds >= best[1].predicted:
            break  # no error is below 0, so that nothing slower can be better
        mixture = next(mixtures)
        if mixture.clients.size < min(least, order.size) and length < order.size:
            continue
        error = mixture.error
        predicted = seconds / (1.0 - error) if error < 1 else math.inf
        point = Point(length, mixture.clients.size, seconds, error, predicted)
        if not frontier or point.error < frontier[-1].error:
            frontier.append(point)
        last = (mixture, point)
        if error < 1 and (best is None or predicted < best[1].predicted):
            best = last
    assert last is not None  # the whole order is always a candidate
    mixture, point = best or last
    counts = mixture.weights >= min(NEGLIGIBLE, float(mixture.weights.max()))
    clients, weights = order[mixture.clients[counts]], mixture.weights[counts]
    ascending = np.argsort(clients)
    weights = weights[ascending] / weights.sum()
    return Match(clients[ascending], weights, point, tuple(frontier), best is not None)


def reasons(view: View, match: Match) -> dict[int, str]:
    """Say of every candidate why it is in or out."""
    said = {
        int(row): f"in with {weight:.1%}: fast enough, and the mixture needs it"
        for row, weight in zip(match.clients, match.weights, strict=True)
    }
    for row in view.candidates.tolist():
        if row not in said:
            slow = view.delay[row] > match.chosen.seconds
            said[row] = (
                f"out: takes {view.delay[row]:.3g} s, and a round of {match.chosen.seconds:.3g} s gets further"
                if slow
                else "out: fast enough, but others match the population without it"
            )
    return said
