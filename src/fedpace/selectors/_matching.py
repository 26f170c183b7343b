"""Finds the fastest clients whose mixture matches the population; shared by `moment-match` and `pace`.

A client is a point in moment space. The origin is the population, so that a point's length is the client's deviation
from it. The error of a weighted mixture is the squared length of its weighted sum. Clients that are fast enough for a
round of tau seconds form a prefix of the clients sorted by delay. One scan over prefixes therefore shows all trade-offs
between time and error: the frontier.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.errors import InputError
from fedpace.core.types import Table, View
from fedpace.numerics.simplex import Mixture, prefix_lengths, prefix_mixtures

NEGLIGIBLE = 1e-4
"""Clients with less weight than this are left out."""
SHOWN = 12
"""Largest number of frontier rows to record, besides the chosen one."""


@dataclass(frozen=True)
class Point:
    """One prefix on the frontier."""

    prefix: int
    """Number of clients in the prefix."""
    clients: int
    """Number of these with a positive weight."""
    seconds: float
    error: float
    """Relative squared error of the gradient, after calibration."""
    predicted: float
    """seconds / (1 - error); infinite if the error is at least 1."""


@dataclass(frozen=True, eq=False)
class Match:
    """The chosen prefix as a cohort."""

    clients: IntArray
    """Rows of the View, ascending."""
    weights: FloatArray
    chosen: Point
    frontier: tuple[Point, ...]
    feasible: bool
    """Whether a prefix had an error below 1. If not, the cohort is the mixture of the last prefix scanned."""

    def table(self) -> Table:
        """Return rows (prefix, clients, seconds, error, predicted) of the frontier, including the chosen one."""
        points = list(self.frontier)
        if len(points) > SHOWN:
            places = np.unique(np.geomspace(1, len(points), SHOWN).astype(int) - 1).tolist()
            points = [point for place, point in enumerate(points) if place in places or point is self.chosen]
        return tuple(
            (p.prefix, p.clients, p.seconds, p.error, p.predicted if math.isfinite(p.predicted) else None)
            for p in points
        )


def population_points(view: View, *, ridge: float, scheme: str) -> FloatArray:
    """Return one point per client; inner products of points form the whitened Gram matrix. NaN = unknown moment."""
    if view.moments is None:
        raise InputError(f"{scheme} needs feature moments, but no client has reported any")
    return view.moments.directions(ridge=ridge, shares=view.share)


def match_population(
    view: View, points: FloatArray, *, own: float = 0.0, least: int = 1, max_clients: int = 0
) -> Match:
    """Return the prefix with the smallest seconds / (1 - error), where the error is that of its best mixture.

    Args:
        view: the available clients and their delays.
        points: (n, r) one row per client.
        own: squared independent error of each client, which only averaging over more clients reduces.
        least: smallest number of clients in a mixture, if there are that many.
        max_clients: largest number of clients in a mixture; 0 = no limit.
    """
    rows = view.candidates
    order = rows[np.lexsort((rows, view.delay[rows]))]
    lengths = list(prefix_lengths(order.size))
    mixtures = prefix_mixtures(points[order], np.arange(order.size), lengths, own=own, max_clients=max_clients or None)
    scan = scan_prefixes(view.delay[order], mixtures, least=least)
    counts = scan.mixture.weights >= min(NEGLIGIBLE, float(scan.mixture.weights.max()))
    clients, weights = order[scan.mixture.clients[counts]], scan.mixture.weights[counts]
    ascending = np.argsort(clients)
    weights = weights[ascending] / weights.sum()
    return Match(clients[ascending], weights, scan.chosen, tuple(scan.frontier), scan.feasible)


@dataclass(frozen=True, eq=False)
class Scan:
    """What a scan over prefixes found."""

    mixture: Mixture
    chosen: Point
    """The prefix with the smallest seconds / (1 - error); if no error is below 1, the last prefix scanned."""
    slower: Point | None
    """The first prefix with longer rounds than the chosen one, if the scan went that far."""
    frontier: list[Point]
    """Prefixes with a smaller error than all shorter ones."""
    feasible: bool


def scan_prefixes(seconds: FloatArray, mixtures: Iterator[Mixture], *, least: int = 1, beyond: bool = False) -> Scan:
    """Scan the prefixes of clients sorted by delay until no slower prefix can be better.

    Args:
        seconds: delays in ascending order.
        mixtures: the best mixture of each prefix of `prefix_lengths`, computed when it is asked for.
        least: smallest number of clients in a mixture, if there are that many.
        beyond: go on to the first prefix that is slower than the chosen one.
    """
    best: tuple[Mixture, Point] | None = None
    last: tuple[Mixture, Point] | None = None
    slower: Point | None = None
    frontier: list[Point] = []
    for length in prefix_lengths(seconds.size):
        now = float(seconds[length - 1])
        if best is not None and now >= best[1].predicted and (slower is not None or not beyond):
            break  # errors are at least 0, so no slower prefix can be better
        mixture = next(mixtures)
        if mixture.clients.size < min(least, seconds.size) and length < seconds.size:
            continue
        error = mixture.error
        predicted = now / (1.0 - error) if error < 1 else math.inf
        point = Point(length, mixture.clients.size, now, error, predicted)
        if best is not None and slower is None and now > best[1].seconds:
            slower = point
        if not frontier or point.error < frontier[-1].error:
            frontier.append(point)
        last = (mixture, point)
        if error < 1 and (best is None or predicted < best[1].predicted):
            best, slower = last, None
    assert last is not None  # the prefix of all clients is never skipped
    mixture, point = best or last
    return Scan(mixture, point, slower, frontier, best is not None)


def reasons(view: View, match: Match) -> dict[int, str]:
    """Return for every candidate the reason why it is in or out."""
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
