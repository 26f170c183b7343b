"""Common parts of the delay models: argument checks, and client means with log-normal noise per round.

Every draw comes from a random stream named by the seed and the step alone, independent of the selected clients. All
schemes under one seed therefore meet the same delays, and a step can be drawn again, out of order, or after a restart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import FloatArray, IntArray, frozen, is_number, shortened
from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.core.types import DelayConfig, DelayModel

WIDEST = 10.0
"""Largest sigma of a log-normal; beyond it, single draws overflow a float."""


@runtime_checkable
class DelaysOfWork(DelayConfig, Protocol):
    """Delay models that depend on each client's amount of work; hosts that know the work call `build_for`."""

    def build_for(self, samples: ArrayLike, *, model_bytes: int, seed: int) -> DelayModel:
        """Return the delays of clients that train on this many `samples` per round, over all local epochs."""
        ...


def count_of(clients: int) -> int:
    """Return the number of clients; raise InputError unless it is at least 1."""
    if isinstance(clients, bool) or not isinstance(clients, int | np.integer) or clients < 1:
        raise InputError(f"delays are built for at least one client, but clients={clients!r} came")
    return int(clients)


def step_of(step: int) -> int:
    """Return the round number, counted from 0; raise InputError if it is invalid."""
    if isinstance(step, bool) or not isinstance(step, int | np.integer) or step < 0:
        raise InputError(f"a step is a whole number counted from 0, but {step!r} came")
    return int(step)


def size_of(model_bytes: int) -> int:
    """Return the size of a model in bytes; raise InputError if it is invalid."""
    if isinstance(model_bytes, bool) or not isinstance(model_bytes, int | np.integer) or model_bytes < 0:
        raise InputError(f"model_bytes is a whole number of bytes, at least 0, but {model_bytes!r} came")
    return int(model_bytes)


def number(value: float, what: str, *, low: float, high: float = math.inf, above: bool = False) -> None:
    """Raise InputError unless `value` is a finite number in [low, high], or in (low, high] if `above` is True."""
    if is_number(value) and math.isfinite(value) and value <= high and (value > low if above else value >= low):
        return
    bound = f"{'above' if above else 'at least'} {low:g}"
    upper = f" and at most {high:g}" if math.isfinite(high) else ""
    raise InputError(f"{what} must be a finite number {bound}{upper}, but {shortened(value)} came")


def span(value: Sequence[float], what: str, *, low: float, above: bool = False) -> tuple[float, float]:
    """Return a range as (from, to) with from <= to; lists, as in TOML, are accepted."""
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise InputError(f"{what} must be two numbers [from, to], but {value!r} came")
    number(value[0], f"the lower end of {what}", low=low, above=above)
    number(value[1], f"the upper end of {what}", low=low, above=above)
    if value[0] > value[1]:
        raise InputError(f"{what} must run from the smaller to the larger number, but {value!r} came: swap them")
    return float(value[0]), float(value[1])


def positive(seconds: FloatArray, what: str) -> FloatArray:
    """Return delays as a read-only array; raise InputError unless all are finite and above 0."""
    bad = ~(np.isfinite(seconds) & (seconds > 0))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise InputError(
            f"{what} gives client {row} a delay of {seconds[row]} s, but a delay is finite and above 0: "
            f"change the model's options"
        )
    return frozen(seconds)


def dealt(rows: int, clients: int, *, seed: int, key: str) -> IntArray:
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
    normal = stream(seed, "delay", "jitter", step_of(step)).standard_normal(clients)
    return np.asarray(np.exp(sigma * normal - sigma**2 / 2))


class MeanWithJitter:
    """A mean per client times a log-normal factor per round; most delay models build this class."""

    def __init__(self, mean: FloatArray, *, sigma: float, seed: int, what: str) -> None:
        """Store the clients' means; `what` names the model in errors."""
        self._mean = positive(mean, what)
        self._sigma = sigma
        self._seed = seed

    def expected(self) -> FloatArray:
        """(n,) expected seconds of a round."""
        return self._mean

    def draw(self, step: int) -> FloatArray:
        """(n,) seconds in round `step`."""
        step = step_of(step)
        if self._sigma == 0.0:
            return self._mean
        seconds = self._mean * jitter(self._seed, step, self._mean.size, self._sigma)
        seconds.setflags(write=False)
        return seconds


class MeanPlusLognormal:
    """A base per client plus log-normal seconds per round, capped; used for radio networks in a city."""

    def __init__(self, base: FloatArray, *, mu: float, sigma: float, cap: float, seed: int, what: str) -> None:
        """Store the seconds without noise; `what` names the model in errors."""
        self._base = positive(np.minimum(base, cap), what)
        self._mu, self._sigma, self._cap, self._seed = mu, sigma, cap, seed
        self._mean = positive(self._base + self._mean_noise(cap - self._base), what)

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
        normal = stream(self._seed, "delay", "jitter", step_of(step)).standard_normal(self._base.size)
        seconds = np.minimum(self._base + np.exp(self._mu + self._sigma * normal), self._cap)
        seconds.setflags(write=False)
        return seconds
