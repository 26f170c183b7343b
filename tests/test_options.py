"""The settings that the grid's tuning tries: every scheme has some, and each of them can be run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedpace import make_selector
from fedpace._base import registry

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SMALLEST = 50
"""Clients of the smallest fleet of the grid."""
UNTUNED = {"pace", "pace-async"}


@pytest.fixture(scope="module")
def options():
    sys.path.append(str(BENCHMARKS))
    try:
        from grid.options import OPTIONS

        yield OPTIONS
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_every_scheme_but_ours_that_tunes_itself_has_settings(options):
    assert set(options) == set(registry.selectors.names()) - UNTUNED


def test_settings_can_be_built_differ_and_begin_with_the_default(options):
    for name, settings in options.items():
        built = [make_selector(name, **setting) for setting in settings]
        assert built[0] == make_selector(name), f"{name}: the first setting is the one that is registered"
        assert 2 <= len(built) <= 14, name
        assert all(one != other for place, one in enumerate(built) for other in built[:place]), name
        assert all(getattr(selector, "k", 1) <= SMALLEST for selector in built), name
