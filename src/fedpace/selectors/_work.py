"""Chooses the number of clients in flight if client work has a price."""

from __future__ import annotations

import math

import numpy as np

from fedpace._base.checks import FloatArray

STEP = 1.3
"""Ratio between the numbers of clients that are compared; costs are flat around their minimum."""


def numbers(most: int) -> list[int]:
    """Return the numbers of clients to compare, up to `most`: all small numbers, and fewer of the large ones."""
    found = [1]
    while found[-1] < most:
        found.append(min(most, max(found[-1] + 1, int(found[-1] * STEP))))
    return found


def worth_having(price: float, delays: FloatArray, lengths: list[int], errors: FloatArray, fewest: int) -> int:
    """Return the number n of clients in flight that minimises (1 + price n) t / (1 - rho): time plus priced work.

    Clients take turns, so that all are heard, fast ones more often. Of the l clients with a delay of at most t seconds,
    l n / m are in flight at the right time.

    Args:
        price: seconds of training time that one second of a client's work is worth.
        delays: (m,) expected delays, ascending.
        lengths: numbers of clients with a known error, ascending.
        errors: rho for these numbers; other values are interpolated.
        fewest: smallest number of answers per step.
    """
    count = len(delays)
    prefixes = np.array(numbers(count))
    best, chosen = np.inf, count
    for at_work in numbers(count):
        answers = prefixes * at_work / count
        rho = np.interp(np.log(answers), np.log(lengths), errors)
        possible = (answers >= min(fewest, at_work)) & (rho < 1)
        if not possible.any():
            continue
        seconds = np.min(delays[prefixes - 1][possible] / (1.0 - rho[possible]))
        cost = _log(1.0 + price * at_work) + _log(float(seconds))  # logarithms: no price overflows
        if cost < best:
            best, chosen = cost, at_work
    return max(chosen, min(fewest, count))


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
