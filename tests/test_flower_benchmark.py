"""The benchmark in real seconds on Flower: its records are complete, and its tables can be made."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CONTESTANTS = ("random-6", "everybody", "pace", "fedbuff-2", "pace-async")


@pytest.fixture(scope="module")
def shown():
    spec = importlib.util.spec_from_file_location("flower_shown", ROOT / "benchmarks" / "lib" / "flower_shown.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def found():
    return json.loads((ROOT / "benchmarks" / "flower_seconds.json").read_text(encoding="utf-8"))


def test_tables_are_made_of_the_record(shown, found):
    lines = [line for line in shown.tables(found, CONTESTANTS) if line]
    assert len(lines) > 20
    assert all(any(line.startswith(f"| {name} |") for line in lines) for name in CONTESTANTS)


def test_every_contestant_ran_under_every_seed_and_no_decision_took_long(shown, found):
    assert {(run["contestant"], run["seed"]) for run in found} == {(n, s) for n in CONTESTANTS for s in (0, 1, 2)}
    for run in found:
        assert [time for time, _ in run["curve"]] == sorted(time for time, _ in run["curve"])
        if run["spent"]:
            deciding = shown.spent_on(run, "deciding")
            assert deciding["seconds"] / deciding["times"] < 0.05, run["contestant"]
            assert deciding["longest"] >= deciding["seconds"] / deciding["times"]


def test_no_decision_is_fifty_milliseconds_of_work(shown):
    """By the processor time of the server's thread, on a machine that was never idle."""
    runs = json.loads((ROOT / "benchmarks" / "flower_decisions.json").read_text(encoding="utf-8"))
    assert {run["contestant"] for run in runs} == {"pace", "fedbuff-2", "pace-async"}
    assert len(list(shown.server_seconds(runs, ("pace", "fedbuff-2", "pace-async")))) == 14
    for run in runs:
        for what in ("deciding", "screening", "stepping", "settling"):
            assert run["spent"][what]["most_work"] < 0.05, (run["contestant"], what)
            assert run["spent"][what]["work"] <= run["spent"][what]["seconds"] + 1e-3


def test_where_the_time_of_nodes_goes(shown):
    """Two tasks of one node, and one that was not answered, in a run of 100 s."""
    tasks = [
        [0, 3, 2, 5, 8, 9],
        [10, 3, 11, 6, 18, 20],
        [50, None, None, None, None, None],
        [0, 3, None, None, None, 1],
    ]
    journey = shown.journeys({"seconds": 100.0, "tasks": tasks})
    assert journey["there"] == pytest.approx(1.5)
    assert journey["sleep"] == pytest.approx(5.5)
    assert journey["train"] == pytest.approx(1.0)
    assert journey["back"] == pytest.approx(1.5)
    assert journey["working"] == pytest.approx(100 * 13 / 1200)
    assert journey["travelling"] == pytest.approx(100 * 6 / 1200)
    assert journey["idle"] == pytest.approx(100 * (1 - (13 + 6 + 50) / 1200))
