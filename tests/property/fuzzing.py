"""Runs a test for as many cases as are asked for, and counts what came of them."""

from __future__ import annotations

import functools
import os
from collections import Counter
from importlib import metadata
from random import Random

import pytest

from fedpace import FedpaceError

CASES = int(os.environ.get("FEDPACE_FUZZ", "500"))
COUNTS: dict[str, Counter[str]] = {}
"""Surface -> what came of the cases; printed at the end."""


@pytest.fixture(autouse=True, scope="module")
def same_plugins():
    """Look for plug-ins once: that takes longer than all else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "entry_points", functools.cache(metadata.entry_points))
        yield


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
