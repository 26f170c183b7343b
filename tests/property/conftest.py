"""Looks for plug-ins once, and prints what came of fuzzing, which `make test-deep` shows."""

from __future__ import annotations

import functools
import sys
from importlib import metadata

import pytest


@pytest.fixture(autouse=True, scope="module")
def same_plugins():
    """Look for plug-ins once: that takes longer than all else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "entry_points", functools.cache(metadata.entry_points))
        yield


def pytest_terminal_summary(terminalreporter):
    fuzzing = sys.modules.get("fuzzing")
    for surface, counts in sorted(fuzzing.COUNTS.items() if fuzzing else ()):
        told = ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items()))
        terminalreporter.write_line(f"fuzzed {surface}: {sum(counts.values()):,} cases: {told}")
