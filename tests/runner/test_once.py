"""What a comparison costs beside its rounds: files are read once, and nothing is built that is not run."""

from __future__ import annotations

import shutil
import tomllib
from collections import Counter

import pytest

from fedpace.cli.commands import load_under
from fedpace.config import Overrides
from fedpace.data.quadratic import Quadratic
from fedpace.records import run as records
from fedpace.runner import Plan, resume, run_plan
from fedpace.sim.rounds import Simulation
from fedpace.sim.torch_trainer import TorchTrainer

RUNS = [f"{scheme}/seed-{seed}" for scheme in ("random", "submodular") for seed in (0, 1)]


@pytest.fixture
def calls(monkeypatch):
    """Counts what is built, and which run's files are read."""
    found = Counter()

    def count(owner, name, called):
        before = getattr(owner, name)

        def counting(*args, **kwargs):
            found[called(args[0])] += 1
            return before(*args, **kwargs)

        monkeypatch.setattr(owner, name, counting)

    def run_of(path):
        return f"{path.parent.parent.name}/{path.parent.name}"

    count(tomllib, "loads", lambda _: "experiment")
    count(Simulation, "__init__", lambda _: "simulation")
    count(TorchTrainer, "__init__", lambda _: "trainer")
    count(Quadratic, "build", lambda _: "data")
    count(records, "read_json", lambda path: f"info of {run_of(path)}")
    count(records, "_read_rounds", lambda path: f"rounds of {run_of(path)}")
    return found


def each_read(times=1):
    return {f"{part} of {run}": times for part in ("info", "rounds") for run in RUNS}


def test_a_comparison_builds_a_simulation_per_run_and_reads_each_once(call, tiny, tmp_path, calls):
    out = tmp_path / "out"
    call("compare", tiny, "--out", out)
    # All schemes are checked with one trainer before the first of them runs.
    assert calls == {"experiment": 1, "data": 2, "simulation": 4, "trainer": 5, **each_read()}
    for command in ("report", "resume"):
        calls.clear()
        assert call(command, out)[0] == 0
        assert calls == each_read(), command
    calls.clear()
    assert call("resume", out / "random" / "seed-1")[0] == 0
    assert calls == {"info of random/seed-1": 1, "rounds of random/seed-1": 1}


def test_under_several_delay_models_the_file_is_read_once_too(tiny, tmp_path, calls):
    run_plan(Plan.under(load_under(tiny, Overrides(), ["lognormal", "constant"])), tmp_path)
    # `random` looks at no delays: it is trained under the first, and clocked under the second.
    assert calls == {"experiment": 1, "data": 2, "simulation": 6, "trainer": 7, **each_read(2)}


def test_only_what_is_missing_is_built_again(tiny, tmp_path, calls):
    run_plan(Plan.under(load_under(tiny, Overrides())), tmp_path)
    for run in ("random/seed-1", "submodular/seed-0"):
        shutil.rmtree(tmp_path / run)
    calls.clear()
    assert len(resume(tmp_path)) == 4
    assert calls == {"data": 2, "simulation": 2, "trainer": 3, **each_read()}
