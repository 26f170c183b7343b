"""The package that `benchmarks/time_to_target.py` is made of."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedpace.data.digits import Digits
from fedpace.models.builtin import Softmax
from fedpace.sim.training import Training

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PARTS = ("analysis", "cells", "economy", "markdown", "racing", "recorded", "runs", "sceptic", "schemes", "store",
         "tables", "tuning")  # fmt: skip


@pytest.fixture(scope="module")
def grid():
    """Its modules; its folder must not stay on the path, where a file shadows Python's `selectors`."""
    sys.path.append(str(BENCHMARKS))
    try:
        yield SimpleNamespace(**{part: import_module(f"grid.{part}") for part in PARTS})
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def task(grid):
    data = Digits(clients=24, alpha=0.5)
    return grid.cells.Task("tiny", data, Softmax(), Training(epochs=1, batch=16, lr=0.3), (0.1, 0.3), max_rounds=60)
