"""Common parts of the delay models: argument checks, and client means with log-normal noise per round.

Every draw comes from a random stream named by the seed and the step alone, independent of the selected clients. All
schemes under one seed therefore meet the same delays, and a step can be drawn again, out of order, or after a restart.

`summarise` describes a fleet, or many fleets pooled: quantiles, slow fraction, time of a full round and a histogram.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import FloatArray, IntArray, between, frozen, whole
from fedpace._base.errors import InputError
from fedpace._base.options import FINITE, Above, AtLeast, Between, check_option
from fedpace._base.rng import stream
from fedpace.core.types import DelayConfig, DelayModel

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


@dataclass(frozen=True, eq=False)
class DelaySummary:
    """The result of `summarise`. All times are in seconds."""

    clients: int
    """Number of clients per fleet."""
    fleets: int
    rounds: int
    """Number of rounds drawn per fleet."""
    levels: tuple[float, ...]
    quantiles: FloatArray
    """(levels,) quantiles of all drawn delays."""
    mean: float
    threshold: float
    slow: float
    """Fraction of drawn delays above the threshold."""
    full_round: float
    """Mean of the largest delay per round: the cost of waiting for all clients."""
    edges: FloatArray
    """(bins + 1,) edges of the histogram, evenly spaced on a logarithmic scale."""
    counts: IntArray
    """(bins,) number of drawn delays per bin."""

    def rows(self) -> list[tuple[str, float]]:
        """Return the numbers with their names, for a table."""
        table = [(f"p{100 * level:g}", float(value)) for level, value in zip(self.levels, self.quantiles, strict=True)]
        share = (f"share above {self.threshold:g} s", self.slow)
        return [*table, ("mean", self.mean), share, ("full round", self.full_round)]


def summarise(
    *models: DelayModel,
    rounds: int = 20,
    threshold: float = 1000.0,
    levels: Sequence[float] = LEVELS,
    bins: int = 20,
) -> DelaySummary:
    """Return a summary of `rounds` rounds drawn from every model; all fleets must have the same size."""
    if not models:
        raise InputError("expected at least one delay model to summarise, but none came")
    whole(rounds, 1, "rounds")
    whole(bins, 1, "bins")
    check_option(NonNegative, threshold, "threshold")
    for level in levels:
        between(level, 0, 1, "a quantile's level")
    sizes = {model.expected().size for model in models}
    if len(sizes) > 1:
        raise InputError(f"expected fleets of one size, but {', '.join(map(str, sorted(sizes)))} clients came")
    seconds = np.array([model.draw(step) for model in models for step in range(rounds)])
    low, high = float(seconds.min()), float(seconds.max())
    if high <= low * (1 + 1e-9):  # all equal: one bin around the value
        low, high = low / 1.5, high * 1.5
    edges = np.geomspace(low, high, bins + 1)
    counts, _ = np.histogram(seconds, edges)
    return DelaySummary(
        clients=sizes.pop(),
        fleets=len(models),
        rounds=rounds,
        levels=tuple(levels),
        quantiles=frozen(np.quantile(seconds, levels)),
        mean=float(seconds.mean()),
        threshold=threshold,
        slow=float(np.mean(seconds > threshold)),
        full_round=float(seconds.max(axis=1).mean()),
        edges=frozen(edges),
        counts=frozen(counts, np.int64),
    )


Positive = Annotated[float, Above(0), FINITE]
NonNegative = Annotated[float, AtLeast(0), FINITE]
Sigma = Annotated[float, Between(0, 10)]
"""Sigma of a log-normal; beyond 10, single draws overflow a float."""
LogScale = Annotated[float, Between(-300, 300)]
"""A logarithm: the mean of a log-normal's, or a level in dB."""


ComputeShare = Annotated[float, Between(0, 1)]
DEFAULT_COMPUTE_SHARE = 0.5
"""Part of a task's seconds that grows with its work, where a delay model does not tell compute from transfer. It is an
assumption, not a measurement."""


@runtime_checkable
class WorkDelays(DelayModel, Protocol):
    """Delay models that say which part of a task's seconds grows with its work (`Task.work`)."""

    def compute_seconds(self, step: int) -> FloatArray:
        """(n,) the part of `draw(step)` that is proportional to the work; the rest is transfer and overhead."""

    def expected_compute(self) -> FloatArray:
        """(n,) the part of `expected()` that is proportional to the work."""


def compute_seconds(model: DelayModel, step: int) -> FloatArray:
    """(n,) the part of the seconds that `model` draws for `step` that grows with the work of a task."""
    if isinstance(model, WorkDelays):
        return model.compute_seconds(step)
    raise InputError(
        f"{type(model).__name__} does not say which part of its seconds grows with the work of a task: give it a "
        "methods compute_seconds(step) and expected_compute(), or leave the work at 1"
    )


@runtime_checkable
class DelaysBySamples(DelayConfig, Protocol):
    """Delay models that depend on each client's amount of work; hosts that know the work call `build_for`."""

    def build_for(self, samples: ArrayLike, *, model_bytes: int, seed: int) -> DelayModel:
        """Return the delays of clients that train on this many `samples` per round, over all local epochs."""


def check_clients(clients: int) -> int:
    """Return the number of clients; raise InputError unless it is at least 1."""
    whole(clients, 1, "the number of clients with delays")
    return int(clients)


def check_step(step: int) -> int:
    """Return the round number, counted from 0; raise InputError if it is invalid."""
    whole(step, 0, "a step")
    return int(step)


def check_model_bytes(model_bytes: int) -> int:
    """Return the size of a model in bytes; raise InputError if it is invalid."""
    whole(model_bytes, 0, "model_bytes")
    return int(model_bytes)


def checked_range(value: Sequence[float], bound: Any, what: str) -> tuple[float, float]:
    """Return a range as (from, to) with from <= to and both within `bound`; lists, as in TOML, are accepted."""
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise InputError(f"{what} must be two numbers [from, to], but {value!r} came")
    check_option(bound, value[0], f"the lower end of {what}")
    check_option(bound, value[1], f"the upper end of {what}")
    if value[0] > value[1]:
        raise InputError(f"{what} must run from the smaller to the larger number, but {value!r} came: swap them")
    return float(value[0]), float(value[1])


def checked_delays(seconds: FloatArray, what: str) -> FloatArray:
    """Return delays as a read-only array; raise InputError unless all are finite and above 0."""
    bad = ~(np.isfinite(seconds) & (seconds > 0))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise InputError(
            f"{what} gives client {row} a delay of {seconds[row]} s, but a delay is finite and above 0: "
            f"change the model's options"
        )
    return frozen(seconds)


def deal_rows(rows: int, clients: int, *, seed: int, key: str) -> IntArray:
    """(clients,) shuffled rows of a table; every row is used once before any row is used twice.

    The rows of the first clients do not depend on the number of clients.
    """
    rounds = -(-clients // rows)
    order = [stream(seed, "delay", key, "deal", i).permutation(rows) for i in range(rounds)]
    return np.concatenate(order)[:clients]


def jitter(seed: int, step: int, clients: int, sigma: float) -> FloatArray:
    """(clients,) log-normal factors for one round, with mean 1, so that they do not change the expected delay.

    The factors of the first clients do not depend on the number of clients.
    """
    normal = stream(seed, "delay", "jitter", check_step(step)).standard_normal(clients)
    return np.asarray(np.exp(sigma * normal - sigma**2 / 2))


class MeanWithJitter:
    """A mean per client times a log-normal factor per round; most delay models build this class.

    Args:
        mean: (n,) seconds.
        compute: the part of `mean` that grows with the work: seconds per client.
        sigma: of the factor.
        seed: of the factor.
        what: name of the model in errors.
    """

    def __init__(self, mean: FloatArray, compute: FloatArray, *, sigma: float, seed: int, what: str) -> None:
        self._mean = checked_delays(mean, what)
        self._compute = frozen(compute)
        self._sigma = sigma
        self._seed = seed

    def expected(self) -> FloatArray:
        """(n,) expected seconds of a round."""
        return self._mean

    def draw(self, step: int) -> FloatArray:
        """(n,) seconds in round `step`."""
        step = check_step(step)
        if self._sigma == 0.0:
            return self._mean
        seconds = self._mean * jitter(self._seed, step, self._mean.size, self._sigma)
        seconds.setflags(write=False)
        return seconds

    def compute_seconds(self, step: int) -> FloatArray:
        """(n,) the part of `draw(step)` that grows with the work; the factor of the round applies to both parts."""
        return self._compute * (jitter(self._seed, step, self._mean.size, self._sigma) if self._sigma else 1.0)

    def expected_compute(self) -> FloatArray:
        """(n,) the part of the expected seconds that grows with the work."""
        return self._compute


class MeanPlusLognormal:
    """A base per client plus log-normal seconds per round, capped; used for radio networks in a city.

    The cap bounds the seconds of tasks with work 1.

    Args:
        base: (n,) seconds without noise.
        compute: the part of `base` that grows with the work: seconds per client.
        mu: mean of the logarithm of the noise.
        sigma: standard deviation of that logarithm.
        cap: largest delay in seconds.
        seed: of the noise.
        what: name of the model in errors.
    """

    def __init__(
        self, base: FloatArray, compute: FloatArray, *, mu: float, sigma: float, cap: float, seed: int, what: str
    ) -> None:
        self._base = checked_delays(np.minimum(base, cap), what)
        self._compute = frozen(np.minimum(compute, self._base))
        self._mu, self._sigma, self._cap, self._seed = mu, sigma, cap, seed
        self._mean = checked_delays(self._base + self._mean_noise(cap - self._base), what)

    def _mean_noise(self, room: FloatArray) -> FloatArray:
        """Return E[min(X, room)] of the log-normal noise X; the cap lowers the mean of clients close to it."""
        from scipy.special import ndtr

        mu, sigma = self._mu, self._sigma
        with np.errstate(divide="ignore"):  # room 0: log gives -inf, and the mean is 0
            log_room = np.log(room)
        if sigma == 0.0:
            return np.minimum(math.exp(mu), room)
        below = math.exp(mu + sigma**2 / 2) * ndtr((log_room - mu - sigma**2) / sigma)
        return np.asarray(below + room * ndtr((mu - log_room) / sigma))

    def expected(self) -> FloatArray:
        """(n,) expected seconds of a round, with the cap."""
        return self._mean

    def draw(self, step: int) -> FloatArray:
        """(n,) seconds in round `step`."""
        normal = stream(self._seed, "delay", "jitter", check_step(step)).standard_normal(self._base.size)
        seconds = np.minimum(self._base + np.exp(self._mu + self._sigma * normal), self._cap)
        seconds.setflags(write=False)
        return seconds

    def compute_seconds(self, step: int) -> FloatArray:
        """(n,) the part of `draw(step)` that grows with the work, the same in every round."""
        check_step(step)
        return self._compute

    def expected_compute(self) -> FloatArray:
        """(n,) the part of the expected seconds that grows with the work."""
        return self._compute
