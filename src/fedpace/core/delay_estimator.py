"""DelayEstimator: the server's estimate of client delays, from finished, cut-off and missing observations.

Ours. The estimator is a local-level Kalman filter on log-seconds, with one scalar per client, for all clients at once:

    level_i drifts with variance `noise^2 / memory^2` per round        follows drift; old rounds fade exponentially
    log seconds = level_i + noise                                      noise: one robust value for the whole fleet

- Outliers: an observation more than `outlier` standard deviations away counts less; beyond twice that, it does not
  count. After `patience` such surprises in a row, the filter assumes a change and moves the level. Clients are slow by
  accident, but never fast by accident. So for early answers, one far surprise or two in a row are enough.
- Cut off at a deadline ("at least this long"): the observation is the mean of the normal distribution beyond the cut,
  and the variance shrinks by the information in the cut (the Tobit form of the filter). A cut far below the level has
  no effect; a cut above the level raises the estimate beyond the cut.
- Never seen: the estimate is the fleet's median, with the fleet's spread as uncertainty. If clients differ more than
  rounds, a first observation counts almost fully; otherwise it is pulled toward the fleet.

Protocol: `DelayEstimator` holds the options. `Estimates` is the frozen state, with one row per client in each array.

    state = estimator.init(n)
    state = estimator.fold(state, rows, seconds, finished, step=step)     once per round, rows unique
    estimator.seconds(state)    (n,) mean seconds; the fleet's prior where state.seen is False
    state.append(count), state.remove(rows), state.arrays(), Estimates.load(arrays)

`fold` is pure. `seconds` NaN means no information (a crash says nothing about speed). `finished` False with seconds
means that the server waited that long in vain. The ledger stores the state without knowing its contents.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace._base.checks import BoolArray, FloatArray, IntArray, frozen, whole
from fedpace._base.errors import InputError
from fedpace._base.options import FINITE, Above, AtLeast, Between, Options

SHORTEST = 1e-3
"""Smallest seconds used; shorter observations are raised to this before taking the logarithm."""
_NOISE_RANGE = (0.02, 2.0)
_QUARTILE = 0.6745
"""Half of a standard normal's mass lies within this distance of 0."""


@dataclass(frozen=True, eq=False)
class Estimates:
    """State of the estimator; row i is client i. Arrays are read-only."""

    level: FloatArray
    """(n,) estimated log-seconds; NaN = never seen."""
    doubt: FloatArray
    """(n,) variance of the level's estimate."""
    streak: IntArray
    """(n,) number of surprises in a row; negative for early answers."""
    step: IntArray
    """(n,) round of the last observation; -1 = never."""
    noise: float
    """Standard deviation of log-seconds around the level, the same for all clients."""

    def __post_init__(self) -> None:
        """Freeze the arrays."""
        for name, dtype in (("level", np.float64), ("doubt", np.float64), ("streak", np.int64), ("step", np.int64)):
            object.__setattr__(self, name, frozen(getattr(self, name), dtype))

    @property
    def seen(self) -> BoolArray:
        """(n,) True for clients with any observation."""
        return ~np.isnan(self.level)

    def append(self, count: int) -> Estimates:
        """Return the state with `count` more clients that were never seen."""
        fresh = _unseen(count, self.noise)._columns()
        both = {name: np.concatenate([column, fresh[name]]) for name, column in self._columns().items()}
        return Estimates(**both, noise=self.noise)

    def remove(self, rows: ArrayLike) -> Estimates:
        """Return the state without the clients `rows`; later rows move up."""
        remaining = {name: np.delete(column, np.asarray(rows)) for name, column in self._columns().items()}
        return Estimates(**remaining, noise=self.noise)

    def _columns(self) -> dict[str, NDArray[Any]]:
        return {"level": self.level, "doubt": self.doubt, "streak": self.streak, "step": self.step}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the state as arrays; `load` restores it."""
        return {**self._columns(), "noise": np.array(self.noise)}

    @staticmethod
    def load(arrays: Mapping[str, NDArray[Any]]) -> Estimates:
        """Restore the state that `arrays` returned."""
        columns = {name: arrays[name] for name in ("level", "doubt", "streak", "step")}
        return Estimates(**columns, noise=float(arrays["noise"]))


def _unseen(clients: int, noise: float) -> Estimates:
    return Estimates(
        np.full(clients, np.nan), np.zeros(clients), np.zeros(clients, np.int64), np.full(clients, -1), noise
    )


@dataclass(frozen=True)
class DelayEstimator(Options):
    """Options of the estimator; its methods are pure functions."""

    memory: Annotated[float, AtLeast(1), FINITE] = 6.0
    """Approximate number of rounds that an estimate averages over; small values follow drift faster but are noisy."""
    outlier: Annotated[float, Above(0), FINITE] = 2.0
    """Distance in standard deviations from which an observation counts less; beyond twice this, it does not count."""
    patience: Annotated[int, AtLeast(1)] = 3
    """Number of surprisingly late answers in a row that count as a change."""
    noise: Annotated[float, Between(*_NOISE_RANGE)] = 0.3
    """Initial noise of a round, on the logarithmic scale; the estimator adapts it."""

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> Estimates:
        """Restore the state that `arrays` returned."""
        return Estimates.load(arrays)

    def init(self, clients: int) -> Estimates:
        """Return the state for `clients` clients without any observation."""
        return _unseen(clients, self.noise)

    def seconds(self, state: Estimates) -> FloatArray:
        """(n,) estimated mean seconds; the fleet's median for clients never seen; NaN if no client was seen."""
        middle, _ = _fleet(state)
        level = np.where(state.seen, state.level, middle)
        return np.asarray(np.exp(level + state.noise**2 / 2))

    def fold(
        self, state: Estimates, rows: ArrayLike, seconds: ArrayLike, finished: ArrayLike, *, step: int
    ) -> Estimates:
        """Return the state after a round: (k,) rows, their seconds, and whether they finished or were cut off."""
        whole(step, 0, "a step")
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
        # clients are slow by accident, never fast: believe an early answer sooner than a late one
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
    """Return the median and robust spread of the levels, the prior of a client never seen."""
    levels = state.level[state.seen]
    if not levels.size:
        return math.nan, math.nan
    middle = float(np.median(levels))
    spread = float(np.median(np.abs(levels - middle))) / _QUARTILE
    return middle, max(spread, 0.3)  # a few similar clients do not prove that the next is similar


def _beyond(cut: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the mean of a standard normal beyond `cut`, and the fraction of its variance that the cut removes."""
    from scipy.special import log_ndtr

    mean = np.exp(-(cut**2) / 2 - 0.5 * math.log(2 * math.pi) - log_ndtr(-cut))
    return mean, np.clip(mean * (mean - cut), 0.0, 1.0)


def _noise(noise: float, z: FloatArray) -> float:
    """Return the adapted noise, so that half of the surprises lie within the quartiles; outliers have little effect."""
    if not z.size:
        return noise
    outside = float(np.mean(np.abs(z) > _QUARTILE))
    moved = noise * math.exp(0.2 * z.size / (z.size + 5) * (outside - 0.5))
    return min(max(moved, _NOISE_RANGE[0]), _NOISE_RANGE[1])
