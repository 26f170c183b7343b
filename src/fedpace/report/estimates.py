"""Means over a few seeds with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

CONFIDENCE = 0.95
LEAST = 3
"""Fewest values for an interval."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval."""

    mean: float
    low: float | None
    """Lower end of the interval; None with fewer than three values, because Student's interval of two values can span
    hundreds of times the mean and is useless."""
    high: float | None
    count: int
    """Number of values."""


def estimate(values: Sequence[float]) -> Estimate | None:
    """Return mean and Student's t interval of `values`; None if there are no values."""
    if not values:
        return None
    mean = float(np.mean(values))
    half = _half_width(values)
    if half is None:
        return Estimate(mean, None, None, len(values))
    return Estimate(mean, mean - half, mean + half, len(values))


def metric_estimate(values: Sequence[float], metric: str) -> Estimate | None:
    """Return mean and interval of a metric: an accuracy lies between 0 and 1, and so does its interval."""
    found = estimate(values)
    if metric != "accuracy" or found is None or found.low is None or found.high is None:
        return found
    return Estimate(found.mean, max(found.low, 0.0), min(found.high, 1.0), found.count)


def time_estimate(values: Sequence[float]) -> Estimate | None:
    """Return geometric mean and interval of times or client work, which vary by factors.

    A time of 0 (the initial model meets the target) has no logarithm: then the arithmetic mean is returned, without an
    interval.
    """
    if values and min(values) > 0:
        return geometric_estimate(values)
    return Estimate(float(np.mean(values)), None, None, len(values)) if values else None


def geometric_estimate(ratios: Sequence[float]) -> Estimate | None:
    """Return geometric mean and interval of positive `ratios`.

    Computed on logarithms, so that twice as fast and half as fast cancel, and inverse ratios have the inverse interval.
    """
    if len(set(ratios)) == 1:  # exactly this value, without the rounding of logarithms
        ends = ratios[0] if len(ratios) >= LEAST else None
        return Estimate(ratios[0], ends, ends, len(ratios))
    logs = estimate([math.log(ratio) for ratio in ratios])
    if logs is None:
        return None
    low, high = (None if end is None else math.exp(min(end, 700.0)) for end in (logs.low, logs.high))
    return Estimate(math.exp(logs.mean), low, high, logs.count)


def student_quantiles(most: int) -> list[float | None]:
    """Return by the number of values, 0 to `most`, the quantile of their interval; None if there is no interval."""
    known = [float(stdtrit(count - 1, 0.5 + CONFIDENCE / 2)) for count in range(LEAST, most + 1)]
    return [*[None] * min(LEAST, most + 1), *known]


def _half_width(values: Sequence[float]) -> float | None:
    count = len(values)
    if count < LEAST:
        return None
    quantile = student_quantiles(count)[count] or 0.0
    return quantile * float(np.std(values, ddof=1)) / math.sqrt(count)
