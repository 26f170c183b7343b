"""How many clients are worth having at work, where their work has a price."""

from __future__ import annotations

import math

import numpy as np

from fedpace._base.checks import FloatArray

STEP = 1.3
"""Numbers of clients that are compared are this much apart: costs are flat around their minimum."""


def numbers(most: int) -> list[int]:
    """Return numbers of clients up to `most`, all small ones and fewer of the large ones."""
    found = [1]
    while found[-1] < most:
        found.append(min(most, max(found[-1] + 1, int(found[-1] * STEP))))
    return found


def worth_having(price: float, delays: FloatArray, lengths: list[int], errors: FloatArray, fewest: int) -> int:
    """Return the number n of clients at work that makes (1 + price n) t / (1 - rho) least: seconds and work together.

    Who works takes turns, so that everybody is heard, the quick ones more often: of the l clients that answer within t
    seconds, l n / m are at work at the right time.

    Args:
        price: seconds that a second of one client's work counts for.
        delays: (m,) expected ones, ascending.
        lengths: numbers of clients whose error is known, ascending.
        errors: rho of that many; those in between follow.
        fewest: answers that a step needs.
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
        cost = _log(1.0 + price * at_work) + _log(float(seconds))  # of products: no price makes all of them infinite
        if cost < best:
            best, chosen = cost, at_work
    return max(chosen, min(fewest, count))


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
