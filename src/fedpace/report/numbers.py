"""Formats numbers, durations, bytes and names for readers."""

from __future__ import annotations

import math
import textwrap

from fedpace.report.estimates import Estimate

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
