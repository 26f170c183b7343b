"""What a server can know of its clients' delays: an estimate from rounds that were observed, cut off, or never run.

Ours. A local-level Kalman filter on log-seconds, one scalar a client, all clients at once:

    level_i wanders by a variance `noise^2 / memory^2` a round         drift is followed, old rounds fade exponentially
    log seconds = level_i + noise                                      noise: one robust figure for the whole fleet

- Outliers: an observation further than `outlier` standard deviations counts less, beyond twice that not at all.
  `patience` such surprises in a row are a change, not outliers, and the level moves there. By accident a client is
  slow, never fast: for early answers one far surprise, or two in a row, suffice.
- Cut off at a deadline ("at least this long"): the mean of what remains of the normal beyond the cut is taken as the
  observation, and the doubt shrinks by as much as the cut informs (the Tobit form of the filter). A cut far below the
  level says nothing; one above it raises the estimate past the cut.
- Never seen: the fleet's median, doubted as widely as the fleet spreads. A first observation is taken nearly whole
  where clients differ more than rounds do, and is drawn towards the fleet where they do not.

Protocol: `DelayEstimator` holds the options; `Estimates` is the state, frozen, arrays with a row per client.

    state = estimator.init(n)
    state = estimator.fold(state, rows, seconds, finished, step=step)     once per round, rows unique
    estimator.seconds(state)    (n,) mean seconds; the fleet's prior where state.seen is False
    state.append(count), state.remove(rows), state.arrays(), Estimates.load(arrays)

`fold` is pure. `seconds` NaN = nothing was learnt (a crash says nothing about speed); `finished` False with seconds =
waited that long in vain. It has the shape of what a ledger needs, so that one may keep it without knowing its inside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace._base.checks import BoolArray, FloatArray, IntArray, frozen
from fedpace._base.errors import InputError
from fedpace.delays.base import number, step_of

SHORTEST = 1e-3
"""Seconds: less is taken as this, since a logarithm needs a number above 0."""
_NOISE_RANGE = (0.02, 2.0)
_QUARTILE = 0.6745
"""Half of a normal's draws lie within this many standard deviations."""


@dataclass(frozen=True, eq=False)
class Estimates:
    """What is known of each client; row i is client i. Read-only."""

    level: FloatArray
    """(n,) log-seconds; NaN = never seen."""
    doubt: FloatArray
    """(n,) variance of the level."""
    streak: IntArray
    """(n,) surprises in a row, negative below the level."""
    step: IntArray
    """(n,) round of the last observation; -1 = never."""
    noise: float
    """Standard deviation of a round's log-seconds around the level, the same for all."""

    def __post_init__(self) -> None:
        """Freeze the arrays."""
        for name, dtype in (("level", np.float64), ("doubt", np.float64), ("streak", np.int64), ("step", np.int64)):
            object.__setattr__(self, name, frozen(getattr(self, name), dtype))

    @property
    def seen(self) -> BoolArray:
        """(n,) True where anything was learnt."""
        return ~np.isnan(self.level)

    def append(self, count: int) -> Estimates:
        """Return the state with `count` more clients, never seen."""
        fresh = _unseen(count, self.noise)._columns()
        both = {name: np.concatenate([column, fresh[name]]) for name, column in self._columns().items()}
        return Estimates(**both, noise=self.noise)

    def remove(self, rows: ArrayLike) -> Estimates:
        """Return the state without some clients; later rows move up."""
        remaining = {name: np.delete(column, np.asarray(rows)) for name, column in self._columns().items()}
        return Estimates(**remaining, noise=self.noise)

    def _columns(self) -> dict[str, NDArray[Any]]:
        return {"level": self.level, "doubt": self.doubt, "streak": self.streak, "step": self.step}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all that is needed to restore the state."""
        return {**self._columns(), "noise": np.array(self.noise)}

    @staticmethod
    def load(arrays: Mapping[str, NDArray[Any]]) -> Estimates:
        """Return the state that `arrays` gave."""
        columns = {name: arrays[name] for name in ("level", "doubt", "streak", "step")}
        return Estimates(**columns, noise=float(arrays["noise"]))


def _unseen(clients: int, noise: float) -> Estimates:
    return Estimates(
        np.full(clients, np.nan), np.zeros(clients), np.zeros(clients, np.int64), np.full(clients, -1), noise
    )


@dataclass(frozen=True)
class DelayEstimator:
    """Options of the filter; its methods are pure."""

    memory: float = 6.0
    """Rounds that an estimate averages over, roughly: smaller follows drift faster and is noisier."""
    outlier: float = 2.0
    """Standard deviations from which an observation counts less; beyond twice that it does not count."""
    patience: int = 3
    """Late answers in a row, each a surprise, that are taken as a change."""
    noise: float = 0.3
    """First guess of the noise of a round, on the scale of logarithms; learnt from then on."""

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        number(self.memory, "memory", low=1.0)
        number(self.outlier, "outlier", low=0.0, above=True)
        if isinstance(self.patience, bool) or not isinstance(self.patience, int) or self.patience < 1:
            raise InputError(f"patience must be a whole number of at least 1, but {self.patience!r} came")
        number(self.noise, "noise", low=_NOISE_RANGE[0], high=_NOISE_RANGE[1])

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> Estimates:
        """Return the state that `arrays` gave."""
        return Estimates.load(arrays)

    def init(self, clients: int) -> Estimates:
        """Return the state in which nothing is known of `clients` clients."""
        return _unseen(clients, self.noise)

    def seconds(self, state: Estimates) -> FloatArray:
        """(n,) estimated mean seconds; the fleet's median for those never seen, NaN where nobody was."""
        middle, _ = _fleet(state)
        level = np.where(state.seen, state.level, middle)
        return np.asarray(np.exp(level + state.noise**2 / 2))

    def fold(
        self, state: Estimates, rows: ArrayLike, seconds: ArrayLike, finished: ArrayLike, *, step: int
    ) -> Estimates:
        """Take in one round: (k,) rows, their seconds, and whether they finished or were cut off then."""
        step = step_of(step)
        at, observed, done = _checked(state, rows, seconds, finished)
        if not at.size:
            return state
        y = np.log(np.maximum(observed, SHORTEST))
        seen = state.seen[at]
        middle, spread = _fleet(state)
        if math.isnan(middle):
            middle, spread = float(np.median(y)), 1.0
        variance = state.noise**2
        idle = np.maximum(step - state.step[at], 0)
        level = np.where(seen, state.level[at], middle)
        doubt = np.where(seen, state.doubt[at] + idle * variance / self.memory**2, spread**2)
        scale = np.sqrt(doubt + variance)

        z = (y - level) / scale
        info = np.ones(at.size)
        z[~done], info[~done] = _beyond(z[~done])
        surprise = seen & (np.abs(z) > self.outlier)
        side = np.sign(z).astype(np.int64)
        streak = np.where(surprise, np.where(state.streak[at] * side > 0, state.streak[at], 0) + side, 0)
        # by accident a client is slow, never fast: an early answer is believed sooner than a late one
        early = seen & ((z < -1.5 * self.outlier) | (streak <= -2))
        changed = early | (streak >= self.patience)
        far = np.maximum(np.abs(z) / self.outlier, 1.0)
        trust = np.where(surprise & ~changed, np.maximum(2 - far, 0.0) / far, 1.0)

        gain = np.where(changed, 1.0, doubt / scale**2)
        new = {name: column.copy() for name, column in state._columns().items()}
        new["level"][at] = level + gain * trust * scale * z
        new["doubt"][at] = np.where(changed, variance, doubt * (1 - doubt / scale**2 * trust * info))
        new["streak"][at] = np.where(changed, 0, streak)
        new["step"][at] = step
        return Estimates(**new, noise=_noise(state.noise, z[seen & done]))


def _checked(
    state: Estimates, rows: ArrayLike, seconds: ArrayLike, finished: ArrayLike
) -> tuple[IntArray, FloatArray, BoolArray]:
    at = np.asarray(rows, dtype=np.int64)
    observed = np.asarray(seconds, dtype=np.float64)
    done = np.asarray(finished, dtype=np.bool_)
    if not at.ndim == observed.ndim == done.ndim == 1 or not at.size == observed.size == done.size:
        raise InputError(
            f"expected as many seconds and finished as rows, but shapes {at.shape}, {observed.shape}, {done.shape} came"
        )
    if at.size and (at.min() < 0 or at.max() >= state.level.size):
        raise InputError(f"rows must lie in 0..{state.level.size - 1}, but {at.min()}..{at.max()} came")
    if np.unique(at).size != at.size:
        raise InputError("a client may be observed once per round, but a row came twice")
    bad = np.isinf(observed) | (observed < 0)
    if bad.any():
        worst = int(np.flatnonzero(bad)[0])
        raise InputError(
            f"the seconds of client {at[worst]} must be finite and at least 0, or NaN for nothing learnt, "
            f"but {observed[worst]} came"
        )
    learnt = ~np.isnan(observed)
    return at[learnt], observed[learnt], done[learnt]


def _fleet(state: Estimates) -> tuple[float, float]:
    """Median and robust spread of the levels: the prior of a client never seen."""
    levels = state.level[state.seen]
    if not levels.size:
        return math.nan, math.nan
    middle = float(np.median(levels))
    spread = float(np.median(np.abs(levels - middle))) / _QUARTILE
    return middle, max(spread, 0.3)  # few clients, all alike so far, do not prove that the next one is


def _beyond(cut: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean of a standard normal beyond `cut`, and the share of its variance that knowing so removes."""
    from scipy.special import log_ndtr

    mean = np.exp(-(cut**2) / 2 - 0.5 * math.log(2 * math.pi) - log_ndtr(-cut))
    return mean, np.clip(mean * (mean - cut), 0.0, 1.0)


def _noise(noise: float, z: FloatArray) -> float:
    """Move the noise so that half of the surprises fall within the quartiles: outliers count only as 'outside'."""
    if not z.size:
        return noise
    outside = float(np.mean(np.abs(z) > _QUARTILE))
    moved = noise * math.exp(0.2 * z.size / (z.size + 5) * (outside - 0.5))
    return min(max(moved, _NOISE_RANGE[0]), _NOISE_RANGE[1])
