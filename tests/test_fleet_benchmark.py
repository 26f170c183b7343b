"""What `benchmarks/fleet.py` reports of a run, on a small fleet."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from fedpace.data.digits import Digits
from fedpace.runner import SharedData


@pytest.fixture(scope="module")
def fleet():
    """The benchmark; its folder must not stay on the path, where a file shadows Python's `selectors`."""
    folder = str(Path(__file__).parents[1] / "benchmarks")
    sys.path.append(folder)
    try:
        import fleet

        return fleet
    finally:
        sys.path.remove(folder)


@pytest.mark.parametrize("label", ["random", "pace-50", "fedbuff"])
def test_a_run_says_how_long_it_took_and_what_the_server_spent(fleet, label):
    data = SharedData(Digits(clients=60))
    found = fleet.run(data, label, argparse.Namespace(target=0.4, lr=0.3, max_rounds=60, seed=0))
    assert (found["clients"], found["scheme"]) == (60, label)
    assert found["best_accuracy"] > 0.4
    assert 0 < found["first_crossing"] <= found["virtual_seconds_to_target"] < found["virtual_seconds_played"]
    assert 0 < found["median_decision_seconds"] <= found["longest_later_decision_seconds"]


def test_a_target_out_of_reach_is_none(fleet):
    data = SharedData(Digits(clients=30))
    found = fleet.run(data, "random", argparse.Namespace(target=0.999, lr=0.3, max_rounds=3, seed=0))
    assert (found["virtual_seconds_to_target"], found["rounds_played"]) == (None, 3)
