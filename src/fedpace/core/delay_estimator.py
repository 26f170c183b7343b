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
- Work: a task may train more or less than usual (`Task.work`, w). Its seconds are exp(level_i) (1 + phi_i (w - 1)),
  with phi_i the part that grows with the work. phi_i is a second state of the filter (extended Kalman): answers with
  different work tell level and phi_i apart. Where all work is 1 nothing is learnt of phi_i, and nothing else changes.
- Never seen: the estimate is the fleet's median, with the fleet's spread as uncertainty. If clients differ more than
  rounds, a first observation counts almost fully; otherwise it is pulled toward the fleet.

Protocol: `DelayEstimator` holds the options. `Estimates` is the frozen state, with one row per client in each array.

    state = estimator.init(n)
    state = estimator.fold(state, rows, seconds, finished, step=step, work=work)     once per round, rows unique
    estimator.seconds(state)    (n,) mean seconds at work 1; the fleet's prior where state.seen is False
    state.share                 (n,) phi_i
    state.append(count), state.remove(rows), state.arrays(), Estimates.load(arrays)

`fold` is pure. `seconds` NaN means no information (a crash says nothing about speed). `finished` False with seconds
means that the server waited that long in vain. The ledger stores the state without knowing its contents.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace._base.checks import BoolArray, FloatArray, IntArray, freeze, whole
from fedpace._base.errors import InputError
from fedpace._base.options import FINITE, Above, AtLeast, Between, Options
from fedpace.core.types import ASSUMED_COMPUTE

SHORTEST = 1e-3
"""Smallest seconds used; shorter observations are raised to this before taking the logarithm."""
_NOISE_RANGE = (0.02, 2.0)
SHARE_DOUBT = 0.3
"""Standard deviation of a client's share before answers with different work have shown it."""
GIVEN_SHARE_DOUBT = 0.05
"""The same for a share that the host gives."""
_QUARTILE = 0.6745
"""Half of a standard normal's mass lies within this distance of 0."""


COLUMNS = ("level", "doubt", "streak", "step", "share", "share_doubt", "cross")


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
    share: FloatArray
    """(n,) phi: the part of a task's seconds that grows with its work, at work 1."""
    share_doubt: FloatArray
    """(n,) variance of the share's estimate."""
    cross: FloatArray
    """(n,) covariance of the estimates of level and share."""
    noise: float
    """Standard deviation of log-seconds around the level, the same for all clients."""

    def __post_init__(self) -> None:
        """Freeze the arrays."""
        freeze(self)

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
        return {name: getattr(self, name) for name in COLUMNS}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the state as arrays; `load` restores it."""
        return {**self._columns(), "noise": np.array(self.noise)}

    @staticmethod
    def load(arrays: Mapping[str, NDArray[Any]]) -> Estimates:
        """Restore the state that `arrays` returned."""
        columns = {name: arrays[name] for name in COLUMNS}
        return Estimates(**columns, noise=float(arrays["noise"]))


def _unseen(clients: int, noise: float) -> Estimates:
    return Estimates(
        np.full(clients, np.nan),
        np.zeros(clients),
        np.zeros(clients, np.int64),
        np.full(clients, -1),
        np.full(clients, ASSUMED_COMPUTE),
        np.full(clients, SHARE_DOUBT**2),
        np.zeros(clients),
        noise,
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

    def init(self, clients: int) -> Estimates:
        """Return the state for `clients` clients without any observation."""
        return _unseen(clients, self.noise)

    def seconds(self, state: Estimates) -> FloatArray:
        """(n,) estimated mean seconds at work 1: the fleet's median for clients never seen; NaN before any was seen."""
        middle, _ = _fleet(state)
        level = np.where(state.seen, state.level, middle)
        return np.asarray(np.exp(level + state.noise**2 / 2))

    def with_shares(self, state: Estimates, rows: ArrayLike, shares: ArrayLike) -> Estimates:
        """Return the state with the shares that the host knows; NaN = unknown."""
        at, given = np.asarray(rows, dtype=np.int64), np.clip(np.asarray(shares, dtype=np.float64), 0.0, 1.0)
        told = ~np.isnan(given)
        share, doubt = state.share.copy(), state.share_doubt.copy()
        share[at[told]], doubt[at[told]] = given[told], GIVEN_SHARE_DOUBT**2
        return replace(state, share=share, share_doubt=doubt)

    def fold(
        self,
        state: Estimates,
        rows: ArrayLike,
        seconds: ArrayLike,
        finished: ArrayLike,
        *,
        step: int,
        work: ArrayLike | None = None,
    ) -> Estimates:
        """Return the state after a round.

        Args:
            state: before the round.
            rows: (k,) rows of the clients.
            seconds: (k,) seconds of their tasks; NaN = nothing was learnt.
            finished: (k,) whether they finished or were cut off.
            step: number of the round.
            work: (k,) `Task.work` of the tasks; None = 1 for all.
        """
        whole(step, 0, "a step")
        at, observed, done, extra = _checked(state, rows, seconds, finished, work)
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
        share, cross, share_doubt = state.share[at], state.cross[at], state.share_doubt[at]
        growth = 1 + share * extra
        slope = extra / growth  # of log(1 + share extra) in the share
        scale = np.sqrt(doubt + 2 * slope * cross + slope**2 * share_doubt + variance)

        z = (y - level - np.log(growth)) / scale
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

        # Covariances of the observation with level and share. With work 1, they are `doubt` and 0.
        with_level, with_share = doubt + slope * cross, cross + slope * share_doubt
        gain = np.where(changed, 1.0, with_level / scale**2)
        new = {name: column.copy() for name, column in state._columns().items()}
        new["level"][at] = level + gain * trust * scale * z
        left = 1 - with_level / scale**2 * trust * info * (with_level / doubt)
        new["doubt"][at] = np.where(changed, variance, doubt * left)
        learnt = np.where(changed, 0.0, with_share / scale * trust * z)
        new["share"][at] = np.clip(share + learnt, 0.0, 1.0)
        known = with_share / scale**2 * trust * info
        new["share_doubt"][at] = np.where(changed, SHARE_DOUBT**2, share_doubt - with_share * known)
        new["cross"][at] = np.where(changed, 0.0, cross - with_level * known)
        new["streak"][at] = np.where(changed, 0, streak)
        new["step"][at] = step
        return Estimates(**new, noise=_noise(state.noise, z[seen & done]))


def _checked(
    state: Estimates, rows: ArrayLike, seconds: ArrayLike, finished: ArrayLike, work: ArrayLike | None
) -> tuple[IntArray, FloatArray, BoolArray, FloatArray]:
    """Return rows, seconds, whether they finished, and work - 1, of the observations that say something."""
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
    amounts = np.ones(at.size) if work is None else np.asarray(work, dtype=np.float64)
    if amounts.shape != at.shape or not (np.isfinite(amounts) & (amounts > 0)).all():
        raise InputError(f"expected {at.size} amounts of work above 0, one for each row, but {amounts} came")
    bad = np.isinf(observed) | (observed < 0)
    if bad.any():
        worst = int(np.flatnonzero(bad)[0])
        raise InputError(
            f"the seconds of client {at[worst]} must be finite and at least 0, or NaN for nothing learnt, "
            f"but {observed[worst]} came"
        )
    learnt = ~np.isnan(observed)
    return at[learnt], observed[learnt], done[learnt], amounts[learnt] - 1


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
