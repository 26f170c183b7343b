"""Means over a few seeds with confidence intervals, and numbers, durations, bytes and names as readers see them."""

from __future__ import annotations

import math
import textwrap
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


# -- text -----------------------------------------------------------------------------------------------------------

UNKNOWN = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"


def digits(value: float, significant: int = 3) -> str:
    """Return `value` with a few significant digits and thousands separators, never in powers of ten above one."""
    if value == 0:
        return "0"
    if abs(value) < 1e-4:
        return f"{value:.2e}"
    # Rounded first, so that 99.96 counts as 100 and loses its decimals.
    value = float(f"{value:.{significant - 1}e}") if abs(value) < 10**significant else value
    places = max(0, significant - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}"


def seconds(value: float) -> str:
    """Return a duration; `never` if it is infinite."""
    if math.isinf(value):
        return "never"
    return f"{digits(value)} s"


def metric(value: float) -> str:
    """Return an accuracy or a loss, with one digit more than times, because schemes end close to each other."""
    return digits(value, 4) if abs(value) >= 1 else f"{value:.3f}" if abs(value) >= 1e-2 else digits(value)


def given(value: float) -> str:
    """Return a number that a user typed, in the same form."""
    return f"{value:,.10g}"


def between(estimate: Estimate) -> str | None:
    """Return the interval, or None without one."""
    if estimate.low is None or estimate.high is None:
        return None
    return span(digits(estimate.low), digits(estimate.high))


def span(low: str, high: str) -> str:
    """Return a range."""
    return f"{low}\N{EN DASH}{high}"


def average(value: float) -> str:
    """Return a mean of counts: one decimal, unless it is a whole number."""
    return f"{value:,.1f}".removesuffix(".0")


def shortened(text: str, length: int) -> str:
    """Return `text`, cut where it is longer than `length`."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def percent(share: float) -> str:
    """Return a share as a percentage."""
    if share == 0 or share >= 0.0995:
        return f"{100 * share:.0f} %"
    return f"{100 * share:.1f} %"


def size(count: float) -> str:
    """Return bytes in units of a thousand."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{digits(count)} {unit}"
        count /= 1000
    return f"{digits(count)} TB"


def wrapped(name: str, width: int) -> str:
    """Return a long name on several lines, broken at its dashes; later lines are indented."""
    lines = textwrap.wrap(name, width, subsequent_indent="  ", break_on_hyphens=True, drop_whitespace=False)
    return "\n".join(lines) or name


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 seed`, `3 seeds`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(names: list[str]) -> str:
    """Return names as in a sentence: `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
