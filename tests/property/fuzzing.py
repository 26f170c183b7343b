"""Tests that are run for many cases, which are the same in every run; what came of them is counted.

`FEDPACE_FUZZ` is the number of cases for each surface: 500 unless told otherwise, 10,000 in `make test-deep`.
"""

from __future__ import annotations

import os
from collections import Counter
from random import Random

from fedpace import FedpaceError

CASES = int(os.environ.get("FEDPACE_FUZZ", "500"))
COUNTS: dict[str, Counter[str]] = {}
"""Surface -> what came of the cases; printed at the end."""


def cases(surface):
    """Yield a generator for each case; the same ones in every run."""
    for number in range(CASES):
        yield Random(f"{surface} {number}")


def fuzzed(surface, *makers):
    """Run a test for as many cases as are asked for, and count what came of them."""

    def decorate(check):
        counts = COUNTS.setdefault(surface, Counter())

        def test():
            for rng in cases(surface):
                drawn = [maker(rng) for maker in makers]
                try:
                    check(*drawn)
                except FedpaceError:
                    counts["refused"] += 1
                except Exception as problem:
                    raise AssertionError(f"{surface} raised {problem!r} for {drawn!r}") from problem
                else:
                    counts["taken"] += 1

        return test

    return decorate
