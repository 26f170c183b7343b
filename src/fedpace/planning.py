"""`plan_cohort` chooses the clients to wait for before any training, from delays and, if known, feature moments.

The clients with a delay of at most tau seconds are a prefix of the clients sorted by delay. Waiting for a prefix makes
rounds of tau seconds. The weighted mean of its clients' updates has a relative squared error rho against the mean of
all clients. The progress per round falls with rho, so the time to a target is proportional to tau / (1 - rho). This is
the objective of `moment-match`.

- With moments, rho is the squared length of sum_i a_i M_i at the best weights (`fedpace.numerics.heterogeneity`), with
  M_i = (Z_i - Z) Z^-1 and Z the population's moment. `noise` adds noise sum_i a_i^2 for what moments do not show.
- With delays alone, clients are treated as draws from one population. Then k of n clients have the error
  noise (1/k - 1/n): more clients average better, whichever they are.

The scan ends when the waiting time alone costs more than the best plan so far, so of a million clients it examines only
the fastest. The result is exact for prefixes of up to 200 clients; longer prefixes grow in steps of 2 %.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import FloatArray, IntArray, at_least, finite, float_array, listed, real, whole
from fedpace._base.checks import delays as checked_delays
from fedpace._base.errors import InfeasibleError, InputError
from fedpace.moments.store import RIDGE
from fedpace.numerics.count_sketch import CountSketch
from fedpace.numerics.heterogeneity import regularised_inverse
from fedpace.numerics.lower_bounds import LowerBound, lower_bound
from fedpace.numerics.simplex import Mixture, prefix_lengths, prefix_mixtures
from fedpace.selectors._matching import NEGLIGIBLE, Point, scan_prefixes

PORTION = 4000
"""Number of fastest clients whose moments are read first; it doubles while the scan continues."""
WIDEST = 4096
"""Most entries of a moment that is used unchanged; larger moments are sketched to `SKETCH` entries."""
SKETCH = 512
ANSWERS = (0.0, 1.0, 10.0)
"""Answers per client and step for which lower bounds are computed."""


@dataclass(frozen=True)
class PlanChoice:
    """One option for rounds: wait for the fastest `prefix` clients."""

    prefix: int
    """Number of clients that are fast enough."""
    clients: int
    """Number of these clients with a weight above 0."""
    seconds: float
    """Seconds per round."""
    error: float
    """Relative squared error of a round's step."""
    cost: float
    """seconds / (1 - error), proportional to the time to a target; infinite if the error is 1 or more."""


@dataclass(frozen=True)
class CohortPlan:
    """The clients to wait for, and the alternatives."""

    clients: tuple[Hashable, ...]
    """The selected clients, fastest first."""
    weights: tuple[float, ...]
    seconds: tuple[float, ...]
    population: int
    chosen: PlanChoice
    one_more: PlanChoice | None
    """Waiting also for the next slower client; None if the plan waits for all clients."""
    everyone: PlanChoice
    """Waiting for all clients."""
    frontier: tuple[PlanChoice, ...]
    """Choices with longer and longer rounds; with moments, only those with a smaller error than all before."""
    moments: bool
    noise: float
    waited: float | None = None
    """Mean seconds until the last client of the cohort replied, if delays of several rounds are given. It is longer
    than the mean of the slowest client, because some client is late in every round."""
    lower_bounds: tuple[LowerBound, ...] = ()
    """What no method beats, for exact updates and for updates that need 1 or 10 answers per client and step."""

    def sentences(self) -> list[str]:
        """Return the plan as sentences."""
        chosen = self.chosen
        said = [
            f"Wait for {chosen.clients} of {self.population:,} clients: a round takes {chosen.seconds:,.4g} s, and its "
            f"step has a relative squared error of {chosen.error:.1%} against the step of all clients.",
            *([] if self.moments else [self._caveat()]),
            f"Waiting for all takes {self.everyone.seconds:,.4g} s per round, and {_times(self.everyone, chosen)} as "
            "long to the same target.",
        ]
        if self.one_more is not None:
            more = self.one_more
            said.append(
                f"One more slow client makes a round {more.seconds - chosen.seconds:,.3g} s longer and the error "
                f"{more.error:.1%}: {more.cost / chosen.cost - 1:+.1%} to the time to a target."
            )
        if self.waited is not None:
            said.append(
                f"In the rounds of the table, the last client of the cohort had replied after {self.waited:,.4g} s on "
                "average."
            )
        if self.lower_bounds:
            exact, *_, noisy = self.lower_bounds
            said.append(
                f"No method needs less than {exact.same_data:,.4g} s per step if all clients hold the same data, and "
                f"{exact.different_data:,.4g} s if each holds its own, up to a constant and with exact updates; "
                f"{noisy.same_data:,.4g} s and {noisy.different_data:,.4g} s if a step needs "
                f"{noisy.answers / self.population:g} answers per client (docs/lower-bounds.md)."
            )
        return said

    def _caveat(self) -> str:
        """Return what a plan from delays alone assumes."""
        return (
            f"This plan knows delays only: it assumes that all clients hold the same kind of data, and that the update "
            f"of one client has a relative squared error of {self.noise:g}. If slow clients hold other data, the model "
            "will not learn it: give moments, or compare schemes with `fedpace compare`."
        )


def plan_cohort(
    delay: ArrayLike,
    moments: ArrayLike | None = None,
    *,
    names: Sequence[Hashable] | None = None,
    noise: float | None = None,
    ridge: float = RIDGE,
    max_clients: int = 0,
) -> CohortPlan:
    """Return the clients to wait for, with their weights and the alternatives.

    Args:
        delay: (n,) seconds per round, or (rounds, n) seconds in each round, of which the mean is used.
        moments: (n, d, d) second moments of features, or (n, r, d) factors F_i of them; None = not known.
        names: names of the clients; None = their row numbers.
        noise: relative squared error of a single client that only averaging reduces; None = 1 without moments, 0 with
            moments.
        ridge: added to the mean moment before it is inverted, in units of its mean eigenvalue.
        max_clients: most clients with a weight; 0 = no limit.
    """
    drawn = None
    if _axes(delay, "delays") == 2:
        table = float_array(delay, "delays", ndim=2, finite=False)
        if not len(table):
            raise InputError("delays must be those of one round at least, but the table has none")
        drawn = np.stack([checked_delays(row) for row in table])
        delay = drawn.mean(axis=0)
    tau = checked_delays(float_array(delay, "delays"))
    own = (1.0 if moments is None else 0.0) if noise is None else real(noise, "noise")
    at_least(own, 0, "noise")
    finite(own, "noise")
    whole(max_clients, 0, "max_clients")
    if names is not None and len(names := listed(names, "names")) != tau.size:
        raise InputError(f"names must be one per client, {tau.size}, but {len(names)} came")
    order = np.argsort(tau, kind="stable")
    if moments is None:
        found = _by_delays(tau[order], own, max_clients)
    else:
        found = _by_moments(tau[order], _Moments(moments, order, ridge), own, max_clients)
    picked, weights, chosen, one_more, everyone, frontier = found
    rows = order[picked]
    kept = weights >= min(NEGLIGIBLE, float(weights.max()))
    rows, weights = rows[kept], weights[kept] / weights[kept].sum()
    return CohortPlan(
        clients=tuple(int(row) if names is None else names[row] for row in rows),
        weights=tuple(weights.tolist()),
        seconds=tuple(tau[rows].tolist()),
        population=tau.size,
        chosen=chosen,
        one_more=one_more,
        everyone=everyone,
        frontier=frontier,
        moments=moments is not None,
        noise=own,
        waited=None if drawn is None else float(drawn[:, rows].max(axis=1).mean()),
        lower_bounds=tuple(lower_bound(tau, times * tau.size) for times in ANSWERS),
    )


_Found = tuple[IntArray, FloatArray, PlanChoice, PlanChoice | None, PlanChoice, tuple[PlanChoice, ...]]


def _by_delays(tau: FloatArray, noise: float, most: int) -> _Found:
    """Find the best prefix without moments; the error of every prefix has a closed form."""
    count = tau.size
    k = np.arange(1, count + 1)
    used = np.minimum(k, most) if most else k
    error = noise * (1.0 / used - 1.0 / count)
    choices = _choices(k, used, tau, error)
    best = int(np.argmin(choices[:, 4]))
    if not math.isfinite(choices[best, 4]):
        raise InfeasibleError(f"no set of clients is good enough: with noise = {noise} all errors are 1 or more")
    # Clients with equal delays belong together: the next slower client is the first with a longer delay.
    slower = np.flatnonzero(tau > tau[best])
    frontier = tuple(_choice(choices[place]) for place in _spread(count, best))
    return (
        np.arange(best + 1)[-int(used[best]) :] if most else np.arange(best + 1),
        np.full(int(used[best]), 1.0 / used[best]),
        _choice(choices[best]),
        _choice(choices[int(slower[0])]) if slower.size else None,
        _choice(choices[-1]),
        tuple(point for point in frontier if point.prefix <= 1 or math.isfinite(point.cost)),
    )


def _by_moments(tau: FloatArray, moments: _Moments, noise: float, most: int) -> _Found:
    """Find the best prefix by the scan of `moment-match`."""
    count = tau.size
    scan = scan_prefixes(tau, _mixtures(moments, count, noise, most), beyond=True)
    if not scan.feasible:
        raise InfeasibleError(
            f"no set of clients resembles the population: the least error is {scan.chosen.error:.3g}, and it must be "
            "below 1; raise ridge, or lower noise"
        )
    chosen, *frontier = (_of_point(point) for point in (scan.chosen, *scan.frontier))
    after = None if scan.slower is None else _of_point(scan.slower)
    everyone = PlanChoice(count, count, float(tau[-1]), noise / count, float(tau[-1]) / max(1e-9, 1 - noise / count))
    return scan.mixture.clients, scan.mixture.weights, chosen, after, everyone, tuple(frontier)


def _of_point(point: Point) -> PlanChoice:
    return PlanChoice(point.prefix, point.clients, point.seconds, point.error, point.predicted)


def _mixtures(moments: _Moments, count: int, noise: float, most: int) -> Iterator[Mixture]:
    """Yield the best mixture of each prefix; moments are read only as far as the scan goes."""
    tried, size = 0, min(count, PORTION)
    while True:
        lengths = [length for length in prefix_lengths(count) if tried < length <= size]
        points = moments.points(size)
        yield from prefix_mixtures(points, np.arange(size), lengths, own=noise, max_clients=most or None)
        if size == count:
            return
        tried, size = max([tried, *lengths]), min(count, 2 * size)


def _spread(count: int, best: int) -> list[int]:
    places = np.unique(np.geomspace(1, count, min(count, 200)).astype(int) - 1).tolist()
    return sorted({*places, best})


def _choices(prefix: IntArray, used: IntArray, tau: FloatArray, error: FloatArray) -> FloatArray:
    margin = 1.0 - error
    cost = np.divide(tau, margin, out=np.full(tau.size, np.inf), where=margin > 0)
    return np.column_stack([prefix, used, tau, error, cost])


def _choice(row: FloatArray) -> PlanChoice:
    return PlanChoice(int(row[0]), int(row[1]), float(row[2]), float(row[3]), float(row[4]))


def _times(one: PlanChoice, other: PlanChoice) -> str:
    ratio = one.cost / other.cost
    return f"{ratio:,.0f} times" if ratio >= 100 else f"{ratio:.3g} times"


def _axes(values: ArrayLike, what: str) -> int:
    """Return the number of axes of an array; raise if the rows have different lengths."""
    try:
        return int(np.ndim(values))
    except ValueError as cause:
        raise InputError(f"{what} must be numbers with as many in each row, but {values!r} came") from cause


class _Moments:
    """Whitened deviations of the clients' moments from their mean, in order of delay, computed on demand."""

    def __init__(self, moments: ArrayLike, order: IntArray, ridge: float) -> None:
        _axes(moments, "moments")
        table = np.asarray(moments)
        if table.ndim != 3 or len(table) != len(order) or 0 in table.shape or table.dtype.kind not in "fiu":
            raise InputError(
                f"moments must be numbers of shape (clients, d, d), or factors (clients, rows, d), for {len(order)} "
                f"clients, but an array of {table.dtype} and shape {table.shape} came"
            )
        if not np.isfinite(table).all():
            raise InputError("moments must be finite, but some are NaN or infinite: leave those clients out")
        self._table, self._order = table, order
        self._square = table.shape[1] == table.shape[2] and bool(
            np.allclose(table[:50], np.swapaxes(table[:50], 1, 2), atol=1e-9)
        )
        width = table.shape[2]
        mean = np.zeros((width, width))
        for start in range(0, len(table), 50_000):
            mean += self._moments(np.arange(start, min(start + 50_000, len(table)))).sum(axis=0)
        self._mean = mean / len(table)
        self._inverse = regularised_inverse(self._mean, ridge=ridge)
        self._sketch = CountSketch(width * width, SKETCH, seed=0) if width * width > WIDEST else None
        self._points = np.zeros((0, SKETCH if self._sketch is not None else width * width))

    def _moments(self, rows: IntArray) -> FloatArray:
        part = self._table[rows].astype(np.float64)
        return part if self._square else np.einsum("nri,nrj->nij", part, part)

    def points(self, count: int) -> FloatArray:
        """Return the whitened deviations of the fastest `count` clients, one row each."""
        fresh = self._order[len(self._points) : count]
        if fresh.size:
            flat = ((self._moments(fresh) - self._mean) @ self._inverse).reshape(fresh.size, -1)
            flat /= math.sqrt(len(self._mean))
            if self._sketch is not None:
                flat = np.stack([self._sketch(row) for row in flat])
            self._points = np.vstack([self._points, flat])
        return self._points
