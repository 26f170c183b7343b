"""Imports from benchmarks/, whose folder must not stay on the path: a file there shadows Python's `selectors`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

FOLDER = str(Path(__file__).parents[2] / "benchmarks")


def benchmark(name):
    """Return a module of the benchmarks."""
    sys.path.append(FOLDER)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(FOLDER)
