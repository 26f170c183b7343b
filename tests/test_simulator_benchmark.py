"""The simulator's benchmark runs: tiny sizes, real contestants. What it measures is not looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "simulator.py"


def run(*options):
    command = [sys.executable, str(BENCHMARK), "--quick", *options]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=900, check=True)
    return json.loads(finished.stdout)


@pytest.mark.slow
def test_plain_loops_and_fedpace_take_turns():
    result = run("--only", "images,memory", "--without", "flower,ray,sequential")
    assert set(result["images"]["rounds"]) == {"plain-processes", "fedpace-processes"}
    (compared,) = result["images"]["times_longer"].values()
    assert compared["least"] <= compared["median"] <= compared["most"]
    assert result["memory"]["peak_gib"] > 0.01, "a process with torch in it has more"


@pytest.mark.slow
def test_every_section_with_every_contestant_that_is_installed():
    result = run()
    played = set(result["images"]["rounds"])
    assert played >= {"plain-sequential", "plain-processes", "fedpace-processes", "fedpace-ray"}
    assert ("flower" in played) == ("flower" not in result["without"])
    assert [row["cohort"] for row in result["growth"]["rows"]] == [5, 20, 5]
    assert set(result["overhead"]) >= {"softmax", "mlp"}
    assert result["resume"]
