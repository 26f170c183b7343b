"""Jobs side by side: the same records as one after the other, one error that ends all, and no orphans."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tiny import TABLE, TINY

from fedpace._base.errors import InfeasibleError, InputError
from fedpace.config import parse_experiment
from fedpace.records.run import find_runs, read_run
from fedpace.runner import Execution, run_all
from fedpace.sim.engines.engine import EngineOptions

LONG = TINY.replace("lr = 0.05", "lr = 1e-9").replace("max_rounds = 3", "max_rounds = 1000000")


def experiment(**changes):
    return parse_experiment(TABLE | {"stop": {"max_rounds": 4}} | changes, "test")


def everything(folder):
    """All bytes that do not tell of the hour."""
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.suffix in (".jsonl", ".safetensors")
    }


def test_side_by_side_is_one_after_the_other(tmp_path):
    seen = []
    watch = lambda job, current: seen.append((job.scheme.label, job.seed, current.number))  # noqa: E731
    one = run_all(experiment(), tmp_path / "one")
    two = run_all(experiment(), tmp_path / "two", watch, jobs=2)
    assert [(r.info.label, r.info.seed) for r in two] == [(r.info.label, r.info.seed) for r in one]
    assert everything(tmp_path / "one") == everything(tmp_path / "two")
    assert len(everything(tmp_path / "two")) == 8
    assert sorted(seen) == sorted(
        (label, seed, number) for label in ("random", "submodular") for seed in (0, 1) for number in range(5)
    )


def test_an_error_in_a_worker_is_the_error(tmp_path):
    impossible = {"name": "delayhet-submodular", "max_clients": 1, "ridge": 0.0}
    with pytest.raises(InfeasibleError, match="no set is feasible"):
        run_all(experiment(selectors=[impossible], seeds=2), tmp_path / "runs", jobs=2)


def test_jobs_that_make_no_sense(tmp_path):
    with pytest.raises(InputError, match="jobs must be at least 1, or 0"):
        run_all(experiment(), tmp_path / "runs", jobs=-1)
    execution = Execution(EngineOptions("processes"))
    with pytest.raises(InputError, match="share the cores already: leave out engine processes"):
        run_all(experiment(), tmp_path / "runs", jobs=2, execution=execution)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def process(tmp_path):
    """A comparison of which two runs are under way."""
    started = start(tmp_path)
    try:
        while not under_way(tmp_path / "out"):
            assert started.poll() is None, started.communicate()
            time.sleep(0.1)
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)  # whatever a test that failed has left of it


def under_way(folder):
    lengths = [path.stat().st_size for path in folder.rglob("rounds.jsonl")]
    return len(lengths) == 2 and min(lengths) > 3000


def start(tmp_path):
    (tmp_path / "long.toml").write_text(LONG)
    command = [sys.executable, "-m", "fedpace", "compare", "long.toml", "--jobs", "2", "--out", "out", "--json"]
    return subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell starts background jobs with Ctrl-C ignored, and whatever they start inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_control_c_is_recorded_and_says_how_to_go_on(tmp_path, process):
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process
    printed, errors = process.communicate()
    assert (process.returncode, printed) == (130, "")
    assert errors == "interrupted: the recorded rounds are kept; `fedpace resume out` resumes\n"
    assert [run.info.status for run in find_runs(tmp_path / "out")] == ["interrupted"] * 2


@pytest.mark.slow
def test_no_worker_outlives_the_process_that_started_it(tmp_path, process):
    process.kill()
    process.wait()
    lengths = {}
    for _ in range(100):
        before, lengths = lengths, {path: path.stat().st_size for path in (tmp_path / "out").rglob("rounds.jsonl")}
        if before == lengths:
            break
        time.sleep(0.2)
    assert before == lengths, "nobody writes any more"
    (first, *_) = lengths
    assert json.loads(first.read_bytes().splitlines()[0])["number"] == 0
    assert read_run(first.parent).info.status == "running", "which is what it was"


def test_bytes_do_not_depend_on_how_many_threads_a_process_may_use(tmp_path):
    """A user sets no OMP_NUM_THREADS: NumPy would then use every core here, and one in the pool's workers."""
    free = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    for jobs in ("1", "2"):
        command = [sys.executable, "-m", "fedpace", "compare", "--selectors", "pace,random", "--seeds", "2"]
        command += ["--max-rounds", "6", "--jobs", jobs, "--out", str(tmp_path / jobs)]
        subprocess.run(command, env=free, check=True, capture_output=True, timeout=300)
    for seed in ("seed-0", "seed-1"):
        one, other = (tmp_path / jobs / "pace" / seed / "rounds.jsonl" for jobs in ("1", "2"))
        assert one.read_bytes() == other.read_bytes()
